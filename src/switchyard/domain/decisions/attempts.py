"""Accept an order, begin an attempt to send it, and each outcome of an attempt: sent, unsent, rejected, in doubt,
absent.

Also what ends or changes a row without an answer: a reroute, a cancel, a kill. Pure.
"""

from datetime import datetime
from decimal import Decimal
from typing import Literal

import msgspec
from msgspec.structs import replace

from switchyard.domain.decisions.amend import NOT_SHOWN, adopt_amend, record_amend_refused, record_amended
from switchyard.domain.decisions.rows import (
    RetryLimits,
    closed_rows,
    dropped_amends,
    ended_attempt,
    evidence_step,
    has_pending_cancel,
    is_at_venue,
    is_past_deadline,
    moved,
    order_change,
    record_contradicted,
    results_of,
    stepped,
    touched,
    with_bytes,
)
from switchyard.domain.errors import KillCleared, OrderFinal
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.journal.changes import Change, Execution, merged
from switchyard.domain.journal.events import SYSTEM_ACCOUNT, accepted_order, event, key_fact
from switchyard.domain.journal.facts import (
    AcceptedFact,
    DoubtFact,
    KillClearedFact,
    KillFact,
    Quote,
    RejectedFact,
    ReportFact,
    RerouteFact,
    RouteFact,
)
from switchyard.domain.orders.amends import Amounts, amend_of, open_amend
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.lifecycle import Step, is_final, next_status
from switchyard.domain.orders.order import Order, OrderRequest
from switchyard.domain.orders.outbox import SETTLED, MayBeLost, OrderState, OutboxRow, never_lost, queued_row
from switchyard.domain.orders.reasons import (
    ExpiryReason,
    RejectCode,
    SendCode,
    bounded_detail,
    described,
    rejection_reason,
)
from switchyard.domain.orders.reports import rejection_id
from switchyard.domain.risk.checks import Violation, order_reason
from switchyard.domain.risk.claims import Claim, Terms
from switchyard.domain.risk.kills import Kill, was_tried
from switchyard.domain.values import ONE, ZERO


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
        since=row.updated_at if row.status in ("sending", "uncertain") else now,
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


def accept(
    request: OrderRequest,
    *,
    account: AccountId,
    order_id: OrderId,
    venue: VenueName,
    venue_client_order_id: VenueClientOrderId,
    key: KeyEntry | None,
    quote: Quote | None,
    now: datetime,
    trace_id: str | None = None,
    requested_at: datetime | None = None,
    violation: Violation | None = None,
    terms: Terms | None = None,
    claim: Claim | None = None,
    expires_at: datetime | None = None,
    route: RouteFact | None = None,
) -> Change:
    """Accept a checked request: the order, its key and its outbox row, in one change.

    With a violation the order is rejected instead, in the same form: it keeps its key, so that every repeat gets the
    same answer, and has no outbox row (ADR 18). `terms` say what an accepted order reserves while it is open, `claim`
    the limits that its commit has to keep (ADR 22), `expires_at` when a DAY or GTD order ends, `route` how its venue
    was chosen, where there was a choice.
    """
    assert request.time_in_force is not None, "the request was not checked"
    # By place: for more than 15 keywords Python builds a dictionary, which takes four times the instructions.
    order = Order(
        order_id,
        account,
        request.client_order_id,
        venue_client_order_id,
        request.symbol,
        request.side,
        request.type,
        request.time_in_force,
        request.qty,
        request.price,
        request.stop_price,
        "ACCEPTED" if violation is None else "REJECTED",
        ZERO,  # filled_qty
        ZERO,  # filled_notional
        venue,
        None,  # venue_order_id
        None if violation is None else order_reason(violation),
        request.strategy,
        request.tags,
        now,  # accepted_at
        now,  # updated_at
        1,  # version
        trace_id,
        requested_at,
        None if key is None else key.operation,
        None if key is None else key.idempotency_key,
        None if terms is None else terms.currency,
        ONE if terms is None else terms.multiplier,
        request.price if terms is None else terms.price,
        terms is not None and terms.reducing,
        expires_at,
        terms is not None and terms.reduce_only,
        post_only=request.post_only,
        display_qty=request.display_qty,
        venue_reduce_only=request.reduce_only,
    )
    fact = AcceptedFact(
        order=accepted_order(order),
        venue_client_order_id=venue_client_order_id,
        idempotency=None if key is None else key_fact(key, now),
        quote=quote,
        route=route,
    )
    keys = () if key is None else (key,)
    if violation is not None:
        rejected = RejectedFact(
            order=fact.order,
            venue_client_order_id=venue_client_order_id,
            idempotency=fact.idempotency,
            quote=quote,
            route=route,
            reason=violation.reason,
            detail=bounded_detail(violation.detail) or "",
        )
        rejection = event("RiskRejected", account, order_id, rejected)
        return Change(events=(rejection,), orders=(order,), keys=keys, results=results_of(order))
    return Change(
        events=(event("OrderAccepted", account, order_id, fact),),
        orders=(order,),
        keys=keys,
        outbox=(queued_row(order, "new", 1, now),),
        claims=() if claim is None else (claim,),
    )


def record_absent(state: OrderState, row: OutboxRow, now: datetime, *, evidence: str | None = None) -> Change:
    """End the doubt about this client order id; a GTC or DAY order is sent again under it.

    An amend that is proven absent ends without effect. `evidence`: what proves it besides a lookup, for people.

    The next outcome then counts as on a first attempt, because nothing is in doubt any more. An order that is
    cancelled or past its deadline ends. No other id and no other venue is ever permitted: the row keeps `bytes_sent`.
    """
    assert row.kind != "cancel", "the absence of an order says nothing about a cancel"
    if row.kind == "amend":
        # Judged on a market that has moved on since: the account amends again if it still wants to.
        return record_amend_refused(state, row, "ABSENT_AT_VENUE", now, detail=evidence)
    order = state.order
    if order.status not in ("SENDING", "UNKNOWN", "CANCEL_REQUESTED") or order.venue_order_id or order.filled_qty:
        # A report or an answer has shown the order: evidence wins over a lookup that does not find it.
        return record_sent(state, row, order.venue_order_id, now)
    row = with_bytes(row, True)
    dead = ended_attempt(row, now, "dead", "ABSENT_AT_VENUE", evidence)
    if has_pending_cancel(state):
        ended = touched(order, now, status="CANCELED", reason="ABSENT_AT_VENUE")
        return order_change("OrderUpdated", state, ended, (dead, *closed_rows(state, now)))
    if is_past_deadline(order, now):
        ended = stepped(order, "expire", now, reason="ABSENT_AT_VENUE")
        return order_change("OrderUpdated", state, ended, (dead, *closed_rows(state, now)))
    again = ended_attempt(row, now, "failed", "ABSENT_AT_VENUE", evidence, next_attempt_at=now)
    return order_change("OrderUpdated", state, stepped(order, "unsent", now), (again,))


def may_move(state: OrderState) -> bool:
    """Whether the order is proven unsent: no attempt ever began, or each one ended before its first byte.

    An order in doubt never moves, and neither does one that a lookup found absent: that settles one client order id at
    one venue. A venue that answered 429 has seen the order, so it does not move either.
    """
    row = state.find("new", 1)
    if row is None or row.bytes_sent or row.status not in ("queued", "failed"):
        return False
    # An amend that waits for the order was accepted by what its venue can do.
    return state.order.status == "ACCEPTED" and not is_at_venue(state.order) and open_amend(state) is None


def reroute(state: OrderState, to: VenueName, reason: str, now: datetime) -> Change:
    """Give the order to another venue, due at once; it keeps its place in its line and its client order id."""
    assert may_move(state), "the order may be at its venue"
    order, row = state.order, state.row("new", 1)
    assert to != order.venue, "the order is at this venue already"
    fact = RerouteFact(from_venue=order.venue, to=to, reason=bounded_detail(reason) or "")
    waiting = moved(row, now, venue=to, next_attempt_at=now)
    return order_change("OrderRerouted", state, touched(order, now, venue=to), (waiting,), reroute=fact)


def may_be_elsewhere(state: OrderState) -> bool:
    """Whether, after a restore, the order may be at another venue of its route, or there under a later id of its key.

    The lost history may have sent it there. Nothing of it has departed from here since the restore.
    """
    row = state.find("new", 1)
    if row is None or is_at_venue(state.order) or row.status not in ("queued", "failed", "uncertain"):
        return False
    return not row.attempt or (row.status == "uncertain" and row.last_error == "RESTORED")


def adopt_order(
    state: OrderState,
    at: VenueName,
    client_order_id: VenueClientOrderId,
    now: datetime,
    venue_order_id: str | None = None,
    shown: Amounts = NOT_SHOWN,
) -> Change | None:
    """The lost history sent the order to this venue, under this id: it goes on there.

    Under a later id of its key it goes on as after an amend that has replaced it, with the amounts of that order.
    None if it has departed from here.
    """
    if not may_be_elsewhere(state):
        return None
    changes: list[Change] = []

    def add(change: Change) -> None:
        nonlocal state
        changes.append(change)
        rows = {row.key: row for row in (*state.outbox, *change.outbox)}
        state = OrderState(order=change.orders[-1], outbox=tuple(rows.values()))

    if state.row("new", 1).status != "uncertain":
        add(record_doubt(state, state.row("new", 1), "EXECUTED_BEFORE", None, now))
    if at != state.order.venue:
        fact = RerouteFact(from_venue=state.order.venue, to=at, reason="found there after a restore")
        rows = tuple(moved(row, now, venue=at) for row in state.outbox if row.status not in SETTLED)
        add(order_change("OrderRerouted", state, touched(state.order, now, venue=at), rows, reroute=fact))
    add(record_sent(state, state.row("new", 1), venue_order_id, now))
    if client_order_id != state.order.venue_client_order_id:
        amended = adopt_amend(
            state,
            client_order_id,
            now,
            replaces=True,
            shown=shown,
            venue_order_id=venue_order_id,
        )
        assert amended is not None, "the id is new"
        add(amended)
    return merged(changes)


def adopt_qty(state: OrderState, qty: Decimal, now: datetime) -> Change:
    """The lost history sent the order with this quantity: it had decided that by a position that is not known here."""
    order = touched(state.order, now, qty=qty)
    closed: tuple[OutboxRow, ...] = ()
    if order.filled_qty >= qty:
        order = replace(order, status=next_status(order.status, "fill"))
        closed = closed_rows(state, now)
    return order_change("OrderUpdated", state, order, closed)


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


def set_kill(kill: Kill) -> Change:
    """Set a kill: from this commit on no covered order is accepted, and no attempt to send one begins."""
    fact = KillFact(
        kill_id=kill.kill_id,
        account_id=kill.account_id,
        strategy=kill.strategy,
        venue=kill.venue,
        symbol=kill.symbol,
        mode=kill.mode,
        by=kill.set_by,
        reason=kill.set_reason,
        set_at=kill.set_at,
    )
    return Change(events=(event("KillSwitchSet", SYSTEM_ACCOUNT, None, fact),), kills=(kill,))


def clear_kill(kill: Kill, by: str, reason: str, now: datetime) -> Change:
    """End a kill; raises KillCleared where it was cleared before."""
    if kill.cleared_by is not None:
        raise KillCleared(kill.kill_id, kill.cleared_by)
    cleared = msgspec.structs.replace(
        kill, cleared_by=by, cleared_reason=reason, cleared_at=max(now, kill.set_at), version=kill.version + 1
    )
    assert cleared.cleared_at is not None
    fact = KillClearedFact(kill_id=kill.kill_id, by=by, reason=reason, cleared_at=cleared.cleared_at)
    return Change(events=(event("KillSwitchCleared", SYSTEM_ACCOUNT, None, fact),), kills=(cleared,))


def end_killed(state: OrderState, kill: Kill, now: datetime) -> Change:
    """End an order of which nothing is at the venue, because a kill covers it."""
    return end_unsent(state, "KILL_SWITCH", kill.kill_id, now)


def cancel_killed(state: OrderState, kill: Kill, now: datetime, may_be_lost: MayBeLost = never_lost) -> Change | None:
    """Cancel a covered order: end it, or queue a cancel; none where nothing is to be done.

    A cancel that the venue rejected is not repeated: the answer shows `NOT_CANCELLABLE`, and a person decides.
    """
    if is_final(state.order.status):
        return None
    if state.order.status == "ACCEPTED" and not may_be_lost(state.order, state.row("new", 1)):
        return end_killed(state, kill, now)
    # One that the venue acknowledged and did not carry out is repeated by the sweep of its venue.
    return None if was_tried(state, kill) else request_cancel(state, now, may_be_lost)
