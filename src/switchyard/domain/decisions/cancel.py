"""An account asks to cancel an order."""

from datetime import datetime

import msgspec

from switchyard.domain.changes import Change, merged
from switchyard.domain.decisions.attempts import record_doubt
from switchyard.domain.decisions.rows import (
    dropped_amends,
    ended_attempt,
    has_pending_cancel,
    order_change,
    stepped,
)
from switchyard.domain.errors import OrderFinal
from switchyard.domain.lifecycle import is_final
from switchyard.domain.outbox import MayBeLost, OrderState, never_lost, queued_row


def request_cancel(state: OrderState, now: datetime, may_be_lost: MayBeLost = never_lost) -> Change | None:
    """Queue a cancel, or end an order that was never sent; none where a cancel is already under way.

    A cancel that the venue acknowledged and did not carry out is not under way any more: a repeated request queues
    another one. An order that a lost history may have sent comes into doubt, and its cancel waits for the venue.
    """
    order = state.order
    if is_final(order.status):
        raise OrderFinal
    if has_pending_cancel(state):
        return None
    dropped = dropped_amends(state, may_be_lost, now)
    if order.status == "ACCEPTED":
        row = state.row("new", 1)
        if may_be_lost(order, row):
            doubt = record_doubt(state, row, "RESTORED", None, now)
            rows = tuple(doubt.outbox[0] if one.key == row.key else one for one in state.outbox)
            request = request_cancel(OrderState(order=doubt.orders[0], outbox=rows), now, may_be_lost)
            assert request is not None, "it has no cancel"
            return merged([doubt, request])
        ended = stepped(order, "cancel", now, reason="CANCELED_BEFORE_SENDING")
        row = ended_attempt(row, now, "dead", "CANCELED_BEFORE_SENDING", None)
        return order_change("CancelRequested", state, ended, (row, *dropped))
    cancel_count = sum(row.kind == "cancel" for row in state.outbox)
    requested = stepped(order, "cancel", now)
    if any(row.status == "dead" for row in dropped):
        requested = msgspec.structs.replace(requested, amend_qty=None, amend_reserve_price=None)
    cancel = queued_row(requested, "cancel", cancel_count + 1, now)
    return order_change("CancelRequested", state, requested, (cancel, *dropped))


def repeat_cancel(state: OrderState, number: int, now: datetime) -> Change | None:
    """Queue another cancel in place of one that the venue acknowledged and did not carry out.

    None where that is not the order's last cancel any more, or the order is not waiting for it.
    """
    cancels = [row for row in state.outbox if row.kind == "cancel"]
    if state.order.status != "CANCEL_REQUESTED" or not cancels:
        return None
    last = max(cancels, key=lambda row: row.number)
    return request_cancel(state, now) if last.number == number and last.status == "sent" else None
