"""Evidence wins: after a fill or a venue order id, the venue has the order, whatever an answer or a person says."""

from datetime import datetime

from switchyard.domain.changes import Change
from switchyard.domain.decisions.rows import ended_attempt, evidence_step, order_change, stepped
from switchyard.domain.orders import Order
from switchyard.domain.outbox import SETTLED, OrderState, OutboxRow
from switchyard.domain.reasons import SendCode, described


def is_at_venue(order: Order) -> bool:
    """Whether a fill or a venue order id shows that the venue has, or had, the order."""
    return order.venue_order_id is not None or order.filled_qty > 0


def proven_rows(state: OrderState, now: datetime) -> tuple[OutboxRow, ...]:
    """The order's own row, settled as sent by a report, if it waits or is in doubt.

    A row that is being sent is left to its own attempt, whose outcome may be worth recording.
    """
    return tuple(
        ended_attempt(row, now, "sent", None, None, bytes_sent=True)
        for row in state.outbox
        if row.kind == "new" and row.status not in SETTLED and row.status != "sending"
    )


def contradicted_rows(state: OrderState, now: datetime) -> tuple[OutboxRow, ...]:
    """The order's own row, settled as sent, where it had ended as rejected or unsent; it keeps that as its error."""
    return tuple(
        ended_attempt(row, now, "sent", "CONTRADICTED", _error_of(row), bytes_sent=True)
        for row in state.outbox
        if row.kind == "new" and row.status == "dead"
    )


def _error_of(row: OutboxRow) -> str | None:
    return None if row.last_error is None else described(row.last_error, row.error_detail)


def record_contradicted(
    state: OrderState, row: OutboxRow, code: SendCode, now: datetime, *, detail: str | None = None
) -> Change:
    """The venue rejected an order that it has: the row is sent, the order goes on, the row keeps the rejection."""
    sent = ended_attempt(row, now, "sent", "CONTRADICTED", described(code, detail), bytes_sent=True)
    step = evidence_step(state, "part_fill" if state.order.filled_qty else "acknowledge")
    order = stepped(state.order, step, now)
    return order_change("OrderSent", state, order, (sent,))
