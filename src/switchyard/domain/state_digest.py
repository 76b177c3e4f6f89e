"""One digest over all orders: two databases with the same digest have the same orders."""

import hashlib
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

import msgspec

from switchyard.domain.chain import stamp
from switchyard.domain.money import plain
from switchyard.domain.orders import Order


class StateDigest:
    """SHA-256 over orders, added in the order of their ids; the same on every engine and machine."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._last = ""

    def add(self, order: Order) -> None:
        """Add the next order."""
        if order.order_id <= self._last:
            raise ValueError(f"orders must come sorted by id: {order.order_id} after {self._last}")
        self._last = order.order_id
        self._hash.update(msgspec.json.encode([_text(getattr(order, name)) for name in Order.__struct_fields__]))

    def hexdigest(self) -> str:
        """The digest of the orders so far."""
        return self._hash.hexdigest()


def _text(value: object) -> object:
    # Engines return different trailing zeros and time zones for equal values; the canonical text is the same.
    if isinstance(value, Decimal):
        return plain(value)
    return stamp(value) if isinstance(value, datetime) else value


def state_digest(orders: Iterable[Order]) -> str:
    """The digest of all orders, which must come sorted by id."""
    digest = StateDigest()
    for order in orders:
        digest.add(order)
    return digest.hexdigest()
