"""A send in doubt is proven absent: the venue does not have the order, and it can no longer arrive there."""

from datetime import datetime

from switchyard.domain.changes import Change
from switchyard.domain.decisions.amend import record_amend_refused
from switchyard.domain.decisions.attempts import record_sent
from switchyard.domain.decisions.deadlines import is_past_deadline
from switchyard.domain.decisions.rows import (
    closed_rows,
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

    An amend that is proven absent ends without effect.

    The next outcome then counts as on a first attempt, because nothing is in doubt any more. An order that is
    cancelled or past its deadline ends. No other id and no other venue is ever permitted: the row keeps `bytes_sent`.
    """
    assert row.kind != "cancel", "the absence of an order says nothing about a cancel"
    if row.kind == "amend":
        # Judged on a market that has moved on since: the account amends again if it still wants to.
        return record_amend_refused(state, row, "ABSENT_AT_VENUE", now)
    order = state.order
    if order.status not in ("SENDING", "UNKNOWN", "CANCEL_REQUESTED") or order.venue_order_id or order.filled_qty:
        # A report or an answer has shown the order: evidence wins over a lookup that does not find it.
        return record_sent(state, row, order.venue_order_id, now)
    row = with_bytes(row, True)
    dead = ended_attempt(row, now, "dead", "ABSENT_AT_VENUE", None)
    if has_pending_cancel(state):
        ended = touched(order, now, status="CANCELED", reason="ABSENT_AT_VENUE")
        return order_change("OrderUpdated", state, ended, (dead, *closed_rows(state, now)))
    if is_past_deadline(order, now):
        ended = stepped(order, "expire", now, reason="ABSENT_AT_VENUE")
        return order_change("OrderUpdated", state, ended, (dead, *closed_rows(state, now)))
    again = ended_attempt(row, now, "failed", "ABSENT_AT_VENUE", None, next_attempt_at=now)
    return order_change("OrderUpdated", state, stepped(order, "unsent", now), (again,))
