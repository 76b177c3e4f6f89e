"""The result of an order for its idempotency key: what became of the request."""

from decimal import Decimal

import msgspec

from switchyard.domain.canonical import struct_digest
from switchyard.domain.idempotency import DO_ORDER, KeyResult, KeyStatus
from switchyard.domain.lifecycle import FINAL
from switchyard.domain.orders import Order, average_price, ended_unsent


class _Result(msgspec.Struct, frozen=True):
    """What the digest of a result covers."""

    order_id: str
    status: str
    filled_qty: Decimal
    avg_price: Decimal | None
    venue_order_id: str | None
    reason: str | None


def order_result(order: Order) -> KeyResult | None:
    """The result of an order that has ended; none while it is open and for an order without a key.

    The result of a `/do/order` request includes its answer, which shows the order's fills: `flow/results.py` adds it.
    """
    if order.status not in FINAL or order.idempotency_key is None or order.operation == DO_ORDER:
        return None
    assert order.operation is not None, "a key belongs to an operation"
    return KeyResult(
        account_id=order.account_id,
        operation=order.operation,
        idempotency_key=order.idempotency_key,
        order_id=order.order_id,
        status=result_status(order),
        result_digest=struct_digest(
            _Result(
                order_id=order.order_id,
                status=order.status,
                filled_qty=order.filled_qty,
                avg_price=average_price(order),
                venue_order_id=order.venue_order_id,
                reason=order.reason,
            )
        ),
    )


def answer_status(http_status: int) -> KeyStatus:
    """Whether a request with this final answer succeeded."""
    return "succeeded" if http_status < 400 else "failed"


def result_status(order: Order) -> KeyStatus:
    """Whether the request of an order that has ended succeeded: it failed if it was rejected or could not be sent."""
    return "failed" if (order.status == "REJECTED" and not order.filled_qty) or ended_unsent(order) else "succeeded"
