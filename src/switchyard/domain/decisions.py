"""What follows from what happened: pure functions from an order's state to the change it calls for."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec

from switchyard.domain import positions
from switchyard.domain.changes import Change, Execution
from switchyard.domain.errors import NotInDoubt, OrderFinal
from switchyard.domain.events import (
    SYSTEM_ACCOUNT,
    DecisionFact,
    Event,
    EventType,
    OrderFact,
    Quote,
    ResultFact,
    event,
    key_fact,
    outbox_fact,
    position_fact,
    report_fact,
)
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.lifecycle import Step, is_final, next_status
from switchyard.domain.money import EXACT, ZERO, canonical
from switchyard.domain.orders import Order, OrderRequest, TimeInForce, snapshot
from switchyard.domain.outbox import OrderState, OutboxKind, OutboxRow, OutboxStatus, lane_of
from switchyard.domain.positions import Position
from switchyard.domain.reports import ExecutionReport

# How long after acceptance an order that wants to be filled at once may still be sent.
SEND_DEADLINES: Mapping[TimeInForce, timedelta] = {"IOC": timedelta(seconds=2.5), "FOK": timedelta(seconds=5)}
# Why an order is in doubt that was never sent from here: its venue has reported on it before.
EXECUTED_BEFORE = "EXECUTED_BEFORE"
SETTLED: frozenset[OutboxStatus] = frozenset({"sent", "dead"})


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
) -> Change:
    """Take a checked request: the order, its key and its place in the outbox, in one change."""
    assert request.time_in_force is not None, "the request was not checked"
    order = Order(
        order_id=order_id,
        account_id=account,
        client_order_id=request.client_order_id,
        venue_client_order_id=venue_client_order_id,
        symbol=request.symbol,
        side=request.side,
        type=request.type,
        time_in_force=request.time_in_force,
        qty=request.qty,
        price=request.price,
        stop_price=request.stop_price,
        status="ACCEPTED",
        filled_qty=ZERO,
        filled_notional=ZERO,
        venue=venue,
        venue_order_id=None,
        reason=None,
        strategy=request.strategy,
        tags=request.tags,
        accepted_at=now,
        updated_at=now,
        version=1,
    )
    row = _new_row(order, "new", 1, now)
    fact = OrderFact(
        order=snapshot(order),
        outbox=(outbox_fact(row),),
        venue_client_order_id=venue_client_order_id,
        idempotency=None if key is None else key_fact(key, now),
        quote=quote,
    )
    return Change(
        events=(event("OrderAccepted", account, order_id, fact),),
        orders=(order,),
        keys=() if key is None else (key,),
        outbox=(row,),
    )


def begin_attempt(state: OrderState, row: OutboxRow, worker: WorkerId, now: datetime) -> Change:
    """Commit to sending a row: written before the first byte leaves."""
    sending = _moved(row, now, status="sending", attempt=row.attempt + 1, worker=worker)
    order = _stepped(state.order, "attempt", now) if row.kind == "new" else _touched(state.order, now)
    return _change("OrderSending", order, (sending,))


def record_sent(state: OrderState, row: OutboxRow, venue_order_id: str | None, now: datetime) -> Change:
    """The venue has it."""
    sent = _moved(row, now, status="sent", worker=None, last_error=None)
    if row.kind == "cancel":
        return _change("CancelSent", _touched(state.order, now), (sent,))
    order = _stepped(state.order, "acknowledge", now, venue_order_id=venue_order_id or state.order.venue_order_id)
    return _change("OrderSent", order, (sent,))


def record_unsent(state: OrderState, row: OutboxRow, error: str, retry_at: datetime, now: datetime) -> Change:
    """Proven: nothing reached the venue. Try again later, unless it is too late or nobody wants it any more."""
    if row.kind == "cancel":
        return _change("OrderUpdated", _touched(state.order, now), (_failed(row, error, retry_at, now),))
    if state.order.status not in ("SENDING", "UNKNOWN", "CANCEL_REQUESTED"):
        # A report has overtaken the answer: the venue has the order after all, and evidence wins.
        return record_sent(state, row, state.order.venue_order_id, now)
    if _cancel_is_waiting(state):
        ended = _touched(state.order, now, status="CANCELED", reason="CANCELED_BEFORE_SENDING")
        dead = _moved(row, now, status="dead", worker=None, last_error=error)
        return _change("OrderUpdated", ended, (dead, *_closed_cancels(state, now)))
    if is_past_deadline(state.order, retry_at):
        return record_expired(state, row, "BROKER_DOWN", now)
    order = _stepped(state.order, "unsent", now)
    return _change("OrderUpdated", order, (_failed(row, error, retry_at, now),))


def record_expired(state: OrderState, row: OutboxRow, reason: str, now: datetime) -> Change:
    """Proven unsent and too late to send: an order that wants to be filled at once is not sent later."""
    dead = _moved(row, now, status="dead", worker=None, last_error=reason)
    order = _stepped(state.order, "expire", now, reason=reason)
    return _change("OrderUpdated", order, (dead, *_closed_cancels(state, now)))


def is_past_deadline(order: Order, at: datetime) -> bool:
    """Whether the order must not be sent at that time any more."""
    patience = SEND_DEADLINES.get(order.time_in_force)
    return patience is not None and at >= order.accepted_at + patience


def record_rejected(state: OrderState, row: OutboxRow, reason: str, now: datetime) -> Change:
    """The venue said no in a way its documents call final."""
    dead = _moved(row, now, status="dead", worker=None, last_error=reason)
    if row.kind == "cancel":
        if state.order.status != "CANCEL_REQUESTED":
            return _change("OrderUpdated", _touched(state.order, now), (dead,))
        step: Step = "cancel_rejected_part_filled" if state.order.filled_qty else "cancel_rejected"
        return _change("OrderUpdated", _stepped(state.order, step, now), (dead,))
    order = _stepped(state.order, "reject", now, reason=reason)
    return _change("OrderUpdated", order, (dead, *_closed_cancels(state, now)))


def record_doubt(
    state: OrderState,
    row: OutboxRow,
    error: str,
    resend_at: datetime | None,
    now: datetime,
    suspect: WorkerId | None = None,
) -> Change:
    """The answer is lost. Only a venue that deduplicates for good is asked again (at `resend_at`) by sending again.

    `suspect` is a sender that is not proven gone: until it is, nothing may be sent in its place.
    """
    if resend_at is not None and not is_past_deadline(state.order, resend_at):
        moved = _failed(row, error, resend_at, now)
    else:
        moved = _moved(row, now, status="uncertain", worker=suspect, last_error=error)
    if row.kind == "cancel":
        return _change("OrderUncertain", _touched(state.order, now), (moved,))
    if state.order.status not in ("ACCEPTED", "SENDING", "UNKNOWN", "CANCEL_REQUESTED"):
        return record_sent(state, row, state.order.venue_order_id, now)  # reports have settled it meanwhile
    return _change("OrderUncertain", _stepped(state.order, "doubt", now), (moved,))


def decide_by_hand(state: OrderState, row: OutboxRow, decision: DecisionFact, now: datetime) -> Change:
    """End a doubt by a person's word: what was sent goes on as sent, what was not is free to be sent again."""
    if row.status != "uncertain":
        raise NotInDoubt(row.status)
    if decision.verdict == "sent":
        settled = record_sent(state, row, state.order.venue_order_id, now)
    else:
        settled = record_unsent(state, row, "NOT_SENT_BY_DECISION", now, now)
    order = settled.orders[0]
    fact = OrderFact(
        order=snapshot(order), outbox=tuple(outbox_fact(moved) for moved in settled.outbox), decision=decision
    )
    said = event("OperatorDecision", order.account_id, order.order_id, fact)
    return msgspec.structs.replace(settled, events=(said,))


def record_result(entry: KeyEntry, http_status: int, response: str, result_digest: str) -> Change:
    """Keep the final answer to a request beside its key, for whoever repeats it."""
    kept = msgspec.structs.replace(
        entry,
        status="succeeded" if http_status < 400 else "failed",
        http_status=http_status,
        response_payload_json=response,
        result_digest=result_digest,
        version=entry.version + 1,
    )
    fact = ResultFact(
        operation=kept.operation,
        key=kept.idempotency_key,
        status=kept.status,
        http_status=http_status,
        response=response,
        result_digest=result_digest,
        version=kept.version,
    )
    return Change(events=(event("ResultRecorded", kept.account_id, kept.order_id, fact),), keys=(kept,))


def request_cancel(state: OrderState, now: datetime) -> Change | None:
    """The account wants the order gone; none where that is already under way."""
    order = state.order
    if is_final(order.status):
        raise OrderFinal
    cancels = [row for row in state.outbox if row.kind == "cancel"]
    if any(row.status not in SETTLED for row in cancels):
        return None
    if order.status == "ACCEPTED":
        ended = _stepped(order, "cancel", now, reason="CANCELED_BEFORE_SENDING")
        row = _moved(state.row("new", 1), now, status="dead", worker=None, last_error="CANCELED_BEFORE_SENDING")
        return _change("CancelRequested", ended, (row,))
    if order.status == "CANCEL_REQUESTED" and cancels:
        return None
    asked = _stepped(order, "cancel", now)
    return _change("CancelRequested", asked, (_new_row(asked, "cancel", len(cancels) + 1, now),))


def apply_report(state: OrderState, position: Position | None, report: ExecutionReport, now: datetime) -> Change:
    """Take the venue's word: quantities add up by execution, whatever order the reports come in.

    `position` is what the account holds of the symbol; a fill moves it, also one that comes late or is too much.
    """
    before = state.order
    filled = canonical(EXACT.add(before.filled_qty, report.last_qty))
    notional = before.filled_notional
    if report.last_price is not None:
        notional = canonical(EXACT.add(notional, EXACT.multiply(report.last_qty, report.last_price)))
    step = _report_step(before, report, filled)
    ends = step in ("canceled", "reject", "expire") and not is_final(before.status)
    order = _stepped(
        before,
        step,
        now,
        filled_qty=filled,
        filled_notional=notional,
        venue_order_id=report.venue_order_id,
        reason=report.reason if ends else before.reason,
    )
    closed = _closed_cancels(state, now) if is_final(order.status) else ()
    held = positions.apply_report(position, before, report.last_qty, report.last_price, now)
    moved = () if held is None or held is position else (held,)
    fact = OrderFact(
        order=snapshot(order),
        outbox=tuple(outbox_fact(row) for row in closed),
        position=position_fact(moved[0]) if moved else None,
    )
    return Change(
        events=(
            event("ExecutionReport", order.account_id, order.order_id, report_fact(report, order)),
            event("OrderUpdated", order.account_id, order.order_id, fact),
        ),
        orders=(order,),
        outbox=closed,
        positions=moved,
        executions=(Execution(report.venue, report.exec_id, order.order_id),),
    )


def unmatched_report(report: ExecutionReport) -> Change:
    """A report on an order nobody here knows is a fact too."""
    return Change(
        events=(event("ReportUnmatched", SYSTEM_ACCOUNT, None, report_fact(report, None)),),
        executions=(Execution(report.venue, report.exec_id, OrderId(""), report.venue_client_order_id),),
    )


def _report_step(order: Order, report: ExecutionReport, filled: Decimal) -> Step:
    if filled >= order.qty:
        return "fill"
    match report.status:
        case "CANCELED":
            return "canceled"
        case "REJECTED":
            return "reject"
        case "EXPIRED":
            return "expire"
        case _:
            return "part_fill" if report.last_qty else "acknowledge"


def _new_row(order: Order, kind: OutboxKind, number: int, now: datetime) -> OutboxRow:
    return OutboxRow(
        order_id=order.order_id,
        kind=kind,
        number=number,
        venue=order.venue,
        venue_client_order_id=order.venue_client_order_id,
        status="queued",
        attempt=0,
        next_attempt_at=now,
        last_error=None,
        worker=None,
        created_at=now,
        updated_at=now,
        version=1,
        lane=lane_of(order.account_id, order.symbol),
    )


def _cancel_is_waiting(state: OrderState) -> bool:
    return any(row.kind == "cancel" and row.status not in SETTLED for row in state.outbox)


def _closed_cancels(state: OrderState, now: datetime) -> tuple[OutboxRow, ...]:
    """Cancels that nobody has to send any more, since the order has ended by itself.

    One that is being sent right now is left to its own attempt.
    """
    return tuple(
        _moved(row, now, status="dead", worker=None, last_error="ORDER_FINAL")
        for row in state.outbox
        if row.kind == "cancel" and row.status in ("queued", "failed", "uncertain")
    )


def _failed(row: OutboxRow, error: str, retry_at: datetime, now: datetime) -> OutboxRow:
    return _moved(row, now, status="failed", worker=None, last_error=error, next_attempt_at=retry_at)


def _moved(row: OutboxRow, now: datetime, **changes: object) -> OutboxRow:
    changed: OutboxRow = msgspec.structs.replace(
        row, updated_at=max(now, row.updated_at), version=row.version + 1, **changes
    )
    return changed


def _touched(order: Order, now: datetime, **changes: object) -> Order:
    changed: Order = msgspec.structs.replace(
        order, updated_at=max(now, order.updated_at), version=order.version + 1, **changes
    )
    return changed


def _stepped(order: Order, step: Step, now: datetime, **changes: object) -> Order:
    return _touched(order, now, status=next_status(order.status, step), **changes)


def _order_event(kind: EventType, order: Order, rows: tuple[OutboxRow, ...]) -> Event:
    fact = OrderFact(order=snapshot(order), outbox=tuple(outbox_fact(row) for row in rows))
    return event(kind, order.account_id, order.order_id, fact)


def _change(kind: EventType, order: Order, rows: tuple[OutboxRow, ...]) -> Change:
    return Change(events=(_order_event(kind, order, rows),), orders=(order,), outbox=rows)


def backoff(attempt: int, jitter: float) -> timedelta:
    """2, 4 … 256 seconds; `jitter` in [-1, 1] moves it by up to a tenth."""
    seconds = 2.0 ** min(max(attempt, 1), 8)
    return timedelta(seconds=seconds * (1 + jitter / 10))
