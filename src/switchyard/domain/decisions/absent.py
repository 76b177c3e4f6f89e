"""A send in doubt is proven absent: the venue does not have the order, and it can no longer arrive there."""

from datetime import datetime

from switchyard.domain.changes import Change
from switchyard.domain.decisions.attempts import record_sent
from switchyard.domain.decisions.deadlines import is_past_deadline
from switchyard.domain.decisions.rows import (
    closed_cancels,
    ended_attempt,
    has_pending_cancel,
    order_change,
    stepped,
    touched,
    with_bytes,
)
from switchyard.domain.outbox import OrderState, OutboxRow


def record_absent(state: OrderState, row: OutboxRow, now: datetime) -> Change:
    """End the doubt about this client order id; a GTC or DAY order is sent again under it.

    The next outcome then counts as on a first attempt, because nothing is in doubt any more. An order that is
    cancelled or past its deadline ends. No other id and no other venue is ever permitted: the row keeps `bytes_sent`.
    """
    assert row.kind == "new", "the absence of an order says nothing about a cancel"
    order = state.order
    if order.status not in ("SENDING", "UNKNOWN", "CANCEL_REQUESTED") or order.venue_order_id or order.filled_qty:
        # A report or an answer has shown the order: evidence wins over a lookup that does not find it.
        return record_sent(state, row, order.venue_order_id, now)
    row = with_bytes(row, True)
    dead = ended_attempt(row, now, "dead", "ABSENT_AT_VENUE", None)
    if has_pending_cancel(state):
        ended = touched(order, now, status="CANCELED", reason="ABSENT_AT_VENUE")
        return order_change("OrderUpdated", state, ended, (dead, *closed_cancels(state, now)))
    if is_past_deadline(order, now):
        ended = stepped(order, "expire", now, reason="ABSENT_AT_VENUE")
        return order_change("OrderUpdated", state, ended, (dead, *closed_cancels(state, now)))
    again = ended_attempt(row, now, "failed", "ABSENT_AT_VENUE", None, next_attempt_at=now)
    return order_change("OrderUpdated", state, stepped(order, "unsent", now), (again,))
