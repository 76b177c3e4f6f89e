"""An attempt to send a row: its begin, and each outcome it can have."""

from datetime import datetime
from typing import Literal

import msgspec

from switchyard.domain.amends import amend_of
from switchyard.domain.changes import Change, Execution
from switchyard.domain.decisions.amend import record_amend_refused, record_amended
from switchyard.domain.decisions.at_venue import is_at_venue, record_contradicted
from switchyard.domain.decisions.deadlines import RetryLimits, is_past_deadline
from switchyard.domain.decisions.rows import (
    closed_rows,
    ended_attempt,
    evidence_step,
    has_pending_cancel,
    moved,
    order_change,
    stepped,
    touched,
    with_bytes,
)
from switchyard.domain.events import event
from switchyard.domain.facts import DoubtFact, ReportFact
from switchyard.domain.ids import WorkerId
from switchyard.domain.lifecycle import Step, is_final
from switchyard.domain.orders import Order
from switchyard.domain.outbox import MayBeLost, OrderState, OutboxRow
from switchyard.domain.reasons import ExpiryReason, RejectCode, SendCode, bounded_detail, described, rejection_reason
from switchyard.domain.reports import rejection_id


def begin_attempt(state: OrderState, row: OutboxRow, worker: WorkerId, now: datetime) -> Change:
    """Begin to send a row; committed before the first byte leaves."""
    sending = moved(row, now, status="sending", attempt=row.attempt + 1, worker=worker)
    order = stepped(state.order, "attempt", now) if row.kind == "new" else touched(state.order, now)
    return order_change("OrderSending", state, order, (sending,))


def record_sent(
    state: OrderState, row: OutboxRow, venue_order_id: str | None, now: datetime, *, processed_before: bool = False
) -> Change:
    """The venue has the order or the cancel, or has carried the amend out.

    `processed_before`: it had it before this attempt, and answered with a conflict that shows the order.
    """
    if row.kind == "amend":
        return record_amended(state, row, venue_order_id, now)
    code: SendCode | None = "CONFLICT_PROCESSED" if processed_before else None
    sent = ended_attempt(row, now, "sent", code, None, bytes_sent=True)
    if row.kind == "cancel":
        return order_change("CancelSent", state, touched(state.order, now), (sent,))
    step = evidence_step(state, "acknowledge")
    order = stepped(state.order, step, now, venue_order_id=venue_order_id or state.order.venue_order_id)
    return order_change("OrderSent", state, order, (sent,))


def record_unsent(
    state: OrderState,
    row: OutboxRow,
    code: SendCode,
    retry_at: datetime,
    now: datetime,
    *,
    detail: str | None = None,
    bytes_sent: bool = False,
) -> Change:
    """The venue did not process this attempt. Retry later, unless the order is cancelled or its deadline passes first.

    `bytes_sent`: bytes were written all the same, and the venue answered that it did not process them.
    """
    row = with_bytes(row, bytes_sent)
    failed = ended_attempt(row, now, "failed", code, detail, next_attempt_at=retry_at)
    if row.kind == "amend" and (is_final(state.order.status) or has_pending_cancel(state)):
        is_ended = is_final(state.order.status)
        return record_amend_refused(state, row, "ORDER_FINAL" if is_ended else "CANCEL_REQUESTED", now, detail=detail)
    if row.kind != "new":
        return order_change("OrderUpdated", state, touched(state.order, now), (failed,))
    if state.order.status not in ("SENDING", "UNKNOWN", "CANCEL_REQUESTED") or is_at_venue(state.order):
        # A report arrived before this outcome was recorded: the venue has the order, and evidence wins.
        return record_sent(state, row, state.order.venue_order_id, now)
    if has_pending_cancel(state):
        reason = "KILL_SWITCH" if code == "KILL_SWITCH" else "CANCELED_BEFORE_SENDING"
        ended = touched(state.order, now, status="CANCELED", reason=reason)
        dead = ended_attempt(row, now, "dead", code, detail)
        return order_change("OrderUpdated", state, ended, (dead, *closed_rows(state, now)))
    if is_past_deadline(state.order, retry_at):
        return record_expired(state, row, "BROKER_DOWN", now, detail=described(code, detail))
    return order_change("OrderUpdated", state, stepped(state.order, "unsent", now), (failed,))


def record_expired(
    state: OrderState,
    row: OutboxRow,
    reason: ExpiryReason | Literal["ABSENT_AT_VENUE"],
    now: datetime,
    *,
    detail: str | None = None,
) -> Change:
    """Not at the venue, and its send deadline has passed: the order ends and is not sent late.

    If an attempt has written bytes, the reason says so: its key must not be tried under another client order id.
    """
    if row.bytes_sent and reason != "ABSENT_AT_VENUE":
        detail, reason = detail or reason, "NOT_PROCESSED"
    dead = ended_attempt(row, now, "dead", reason, detail)
    order = stepped(state.order, "expire", now, reason=reason)
    return order_change("OrderUpdated", state, order, (dead, *closed_rows(state, now)))


def end_unsent(
    state: OrderState, reason: Literal["KILL_SWITCH", "COLLAR", "NOT_REDUCING"], detail: str, now: datetime
) -> Change:
    """End an order of which nothing is at the venue, because it must not be sent any more."""
    assert state.order.status == "ACCEPTED", "an order that may be at the venue is cancelled there"
    dead = ended_attempt(state.row("new", 1), now, "dead", reason, detail)
    ended = stepped(state.order, "canceled", now, reason=reason)
    return order_change("OrderUpdated", state, ended, (dead, *closed_rows(state, now)))


def record_exhausted(
    state: OrderState, row: OutboxRow, now: datetime, *, detail: str | None = None, bytes_sent: bool = False
) -> Change:
    """Unsent after the last retry: the order ends REJECTED, a cancel or an amend is given up."""
    if row.kind == "new" and is_at_venue(state.order):
        return record_sent(state, row, state.order.venue_order_id, now)
    row = with_bytes(row, bytes_sent)
    reason = described("RETRY_EXHAUSTED", "NOT_PROCESSED") if row.bytes_sent else "RETRY_EXHAUSTED"
    return _given_up(state, row, "RETRY_EXHAUSTED", detail, reason, now)


def end_too_old(state: OrderState, row: OutboxRow, retries: RetryLimits, now: datetime) -> Change:
    """End an order that could not be sent within its time, whether attempts were made or not."""
    assert state.order.status == "ACCEPTED", "an order in doubt, or at the venue, does not end by time"
    last = "no attempt" if row.last_error is None else described(row.last_error, row.error_detail)
    detail = f"not sent within {retries.wait_max.total_seconds():g} s: {last}"
    return record_exhausted(state, row, now, detail=detail)


def record_rejected(
    state: OrderState, row: OutboxRow, code: RejectCode, now: datetime, *, detail: str | None = None
) -> Change:
    """The venue rejected the message, and its documents call that final; a fill outweighs it."""
    row = with_bytes(row, True)
    if row.kind == "new" and is_at_venue(state.order):
        return record_contradicted(state, row, code, now, detail=detail)
    reason = rejection_reason(code, detail)
    change = _given_up(state, row, code, detail, reason, now)
    return change if row.kind != "new" else _with_report(change, state.order, reason, now)


def _with_report(change: Change, order: Order, reason: str, now: datetime) -> Change:
    """The change of a rejection with the report that the venue's answer amounts to: clients follow reports alone."""
    exec_id = rejection_id(order.venue_client_order_id)
    report = ReportFact(exec_id=exec_id, status="REJECTED", filled_qty_total=order.filled_qty, reason=reason, at=now)
    return msgspec.structs.replace(
        change,
        events=(event("ExecutionReport", order.account_id, order.order_id, report), *change.events),
        executions=(Execution(order.venue, exec_id, order.order_id),),
    )


def record_doubt(
    state: OrderState,
    row: OutboxRow,
    code: SendCode,
    resend_at: datetime | None,
    now: datetime,
    *,
    detail: str | None = None,
    suspect: WorkerId | None = None,
    address: str | None = None,
) -> Change:
    """The outcome is lost: the venue may or may not have it.

    `resend_at` is set only where the venue still recognises the client order id: sending again is then safe. `suspect`
    is a sender that is not proven gone: until it is, nothing may be sent in its place.
    """
    doubt = DoubtFact(
        bytes_sent=True,
        code=code,
        detail=bounded_detail(detail),
        address=address,
        since=row.updated_at if row.status == "sending" else now,
    )
    row = with_bytes(row, True)
    if resend_at is not None and not is_past_deadline(state.order, resend_at):
        doubtful = ended_attempt(row, now, "failed", code, detail, next_attempt_at=resend_at)
    else:
        doubtful = ended_attempt(row, now, "uncertain", code, detail, worker=suspect)
    if row.kind == "amend" and is_final(state.order.status) and not amend_of(row).is_provable:
        return record_amend_refused(state, row, code, now, detail=detail)  # without effect, whatever the venue has
    if row.kind != "new":
        return order_change("OrderUncertain", state, touched(state.order, now), (doubtful,), doubt)
    if state.order.status not in ("ACCEPTED", "SENDING", "UNKNOWN", "CANCEL_REQUESTED"):
        return record_sent(state, row, state.order.venue_order_id, now)  # a report has shown that the venue has it
    return order_change("OrderUncertain", state, stepped(state.order, "doubt", now), (doubtful,), doubt)


def unless_lost(change: Change, state: OrderState, row: OutboxRow, may_be_lost: MayBeLost, now: datetime) -> Change:
    """The change, or doubt if it ends a row that a lost history may have sent: only the venue can tell."""
    if change.outbox[0].status != "dead" or not may_be_lost(state.order, row):
        return change
    return record_doubt(state, row, "RESTORED", None, now)


def _given_up(
    state: OrderState, row: OutboxRow, code: SendCode, detail: str | None, reason: str, now: datetime
) -> Change:
    """The row is dead: with it the order, or the wish to cancel or amend it."""
    if row.kind == "amend":
        return record_amend_refused(state, row, code, now, detail=detail)
    dead = ended_attempt(row, now, "dead", code, detail)
    if row.kind == "new":
        order = stepped(state.order, "reject", now, reason=reason)
        return order_change("OrderUpdated", state, order, (dead, *closed_rows(state, now)))
    if state.order.status != "CANCEL_REQUESTED":
        return order_change("OrderUpdated", state, touched(state.order, now), (dead,))
    step: Step = "cancel_rejected_part_filled" if state.order.filled_qty else "cancel_rejected"
    return order_change("OrderUpdated", state, stepped(state.order, step, now), (dead,))
