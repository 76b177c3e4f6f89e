"""The log line of an outbox row that moved, with the fields of the specification of the outbox."""

import structlog

from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxRow

log = structlog.get_logger()


def log_moved(before: OutboxRow, after: OutboxRow, order: Order) -> None:
    """Log a row's step: one line for every send, after its outcome was committed."""
    log.info(
        "outbox_row_moved",
        outbox_id=after.outbox_id,
        status_from=before.status,
        status_to=after.status,
        retry_count=after.retry_count,
        last_error=after.last_error,
        order_id=order.order_id,
        venue=after.venue,
        idempotency_key=order.idempotency_key,
        trace_id=order.trace_id,
        broker_order_id=order.venue_order_id,
    )
