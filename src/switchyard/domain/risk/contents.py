"""The content of an order, by which the duplicate window compares orders."""

from typing import Final

import msgspec

from switchyard.domain.orders import OrderRequest, order_digest

CONTENT: Final = "risk.content"
"""The key store's operation of claimed contents."""


def content_digest(order: OrderRequest) -> str:
    """The digest of what the order trades; labels have no part in it, the strategy has."""
    return order_digest(msgspec.structs.replace(order, client_order_id=None, tags=()))
