"""An account amends an order: the request, and each outcome that an amend can have (ADR 23)."""

from datetime import datetime
from decimal import Decimal

from msgspec.structs import replace

from switchyard.domain.amends import AMENDS_MAX, Amend, amend_of, amend_rows, open_amend, payload_of
from switchyard.domain.changes import Change, merged
from switchyard.domain.decisions.rows import (
    closed_rows,
    ended_attempt,
    has_pending_cancel,
    order_change,
    row_facts,
    touched,
)
from switchyard.domain.errors import AmendPending, CancelPending, OrderFinal, QtyFilled, TooManyAmends
from switchyard.domain.events import EventType, change_of, event, key_fact
from switchyard.domain.facts import OrderFact
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.lifecycle import FINAL, Step, is_final, next_status
from switchyard.domain.money import plain
from switchyard.domain.orders import Order
from switchyard.domain.outbox import SETTLED, OrderState, OutboxRow, queued_row
from switchyard.domain.reasons import SendCode
from switchyard.domain.reports import ExecutionReport
from switchyard.domain.risk.claims import Claim

_END_STEPS: dict[str, Step] = {"CANCELED": "canceled", "EXPIRED": "expire", "REJECTED": "reject"}
assert set(_END_STEPS) == FINAL - {"FILLED"}


def check_amendable(state: OrderState, qty: Decimal) -> None:
    """Raise OrderFinal, CancelPending, AmendPending, TooManyAmends or QtyFilled: no amend to this quantity now."""
    if is_final(state.order.status):
        raise OrderFinal
    if state.order.status == "CANCEL_REQUESTED" or has_pending_cancel(state):
        raise CancelPending
    if open_amend(state) is not None:
        raise AmendPending
    if len(amend_rows(state)) >= AMENDS_MAX:
        raise TooManyAmends(AMENDS_MAX)
    if qty <= state.order.filled_qty:
        raise QtyFilled(plain(state.order.filled_qty))


def request_amend(
    state: OrderState, amend: Amend, key: KeyEntry, now: datetime, *, reducing: bool, claim: Claim | None = None
) -> Change:
    """Queue an amend, or change an order of which nothing was ever sent; raises as `check_amendable`.

    The order reserves the larger of the old and the new amounts from this commit on. `reducing` as in `Order`, with the
    new quantity.
    """
    check_amendable(state, amend.qty)
    order = state.order
    row = queued_row(
        order,
        "amend",
        len(amend_rows(state)) + 1,
        now,
        client_order_id=amend.client_order_id,
        payload=payload_of(amend),
    )
    requested = touched(
        order, now, amend_qty=amend.qty, amend_reserve_price=amend.reserve_price, reducing=order.reducing and reducing
    )
    fact = OrderFact(
        order=change_of(requested, order),
        outbox=row_facts((row,), state, requested),
        idempotency=key_fact(key, requested.updated_at),
    )
    request = Change(
        events=(event("AmendRequested", order.account_id, order.order_id, fact),),
        orders=(requested,),
        outbox=(row,),
        keys=(key,),
        claims=() if claim is None else (claim,),
    )
    if not _was_never_sent(state):
        return request
    after = OrderState(order=requested, outbox=(*state.outbox, row))
    dead = ended_attempt(row, now, "dead", "AMENDED_BEFORE_SENDING", None)
    # No venue ever sees the amend's id: the order goes out, and is cancelled, under its own.
    changed = with_terms(requested, replace(amend, replaces=False))
    return merged([request, _settled("Amended", after, changed, dead, now)])


def record_amended(state: OrderState, row: OutboxRow, venue_order_id: str | None, now: datetime) -> Change:
    """The venue has carried the amend out."""
    sent = ended_attempt(row, now, "sent", None, None, bytes_sent=True)
    amended = with_terms(state.order, amend_of(row))
    if venue_order_id:
        amended = replace(amended, venue_order_id=venue_order_id)
    return _settled("Amended", state, amended, sent, now)


def record_amend_refused(
    state: OrderState, row: OutboxRow, code: SendCode, now: datetime, *, detail: str | None = None
) -> Change:
    """The amend ended without effect: the order keeps its amounts, and ends if the venue had reported its end."""
    dead = ended_attempt(row, now, "dead", code, detail)
    return _settled("AmendRefused", state, without_amend(state.order), dead, now)


def shown_terms(
    state: OrderState, report: ExecutionReport, filled: Decimal, now: datetime
) -> tuple[Order, OutboxRow | None]:
    """The order as the report shows it, and the amend's row if the report shows that the venue has carried it out.

    `filled` is the filled quantity after the report.
    """
    order = state.order
    if order.amend_qty is None and report.leg_client_order_id is None:
        return order, None
    row = _shown_amend(state, report, filled)
    if row is None:
        return order, None
    amended = with_terms(order, amend_of(row))
    if row.status in SETTLED:
        # It was taken for refused; another one may have been requested since, and stays reserved.
        amended = replace(amended, amend_qty=order.amend_qty, amend_reserve_price=order.amend_reserve_price)
        return amended, ended_attempt(row, now, "sent", "CONTRADICTED", row.last_error, bytes_sent=True)
    return amended, ended_attempt(row, now, "sent", None, None, bytes_sent=True)


def _shown_amend(state: OrderState, report: ExecutionReport, filled: Decimal) -> OutboxRow | None:
    """The amend, not settled as sent yet, that the report shows as carried out.

    It comes under the amend's own id, more is filled than the order had before, or the venue calls the order filled at
    the lower quantity of the amend.
    """
    if report.leg_client_order_id is not None:
        own = [row for row in amend_rows(state) if row.venue_client_order_id == report.leg_client_order_id]
        return own[0] if own and own[0].status != "sent" and own[0].attempt else None
    row, order = open_amend(state), state.order
    if row is None or not row.attempt:
        return None
    wanted = amend_of(row).qty
    is_raised = order.qty < filled <= wanted
    is_lowered = report.status == "FILLED" and report.filled_qty_total == filled == wanted < order.qty
    return row if is_raised or is_lowered else None


def possible_qty(state: OrderState, order: Order) -> Decimal:
    """The quantity that the order may have at the venue, if an amend was sent and is not settled."""
    if order.amend_qty is None:
        return order.qty
    row = open_amend(state)
    return max(order.qty, order.amend_qty) if row is not None and row.attempt else order.qty


def may_be_replaced(state: OrderState) -> bool:
    """Whether an attempt of the amend that is not settled may have replaced the order at the venue."""
    row = open_amend(state)
    return row is not None and row.attempt > 0 and row.status != "failed" and amend_of(row).replaces


def with_terms(order: Order, amend: Amend) -> Order:
    """The order with the amounts of an amend that was carried out, and without the reservation for it."""
    return replace(
        order,
        qty=amend.qty,
        price=amend.price,
        stop_price=amend.stop_price,
        reserve_price=amend.reserve_price,
        amend_qty=None,
        amend_reserve_price=None,
        leg_client_order_id=amend.client_order_id if amend.replaces else order.leg_client_order_id,
        leg_end=None,
    )


def without_amend(order: Order) -> Order:
    """The order without an amend that is not settled."""
    return replace(order, amend_qty=None, amend_reserve_price=None)


def _was_never_sent(state: OrderState) -> bool:
    """Whether the order waits for its first attempt, or every attempt ended before its first byte."""
    return state.order.status == "ACCEPTED" and not state.row("new", 1).bytes_sent


def _settled(kind: EventType, state: OrderState, order: Order, row: OutboxRow, now: datetime) -> Change:
    """The change that settles an amend; the order may have been waiting for it to end."""
    status = order.status
    if not is_final(status):
        if order.filled_qty >= order.qty:
            status = next_status(status, "fill")
        elif order.leg_end is not None:
            step = _END_STEPS[order.leg_end]
            status = next_status(status, "reject_part_filled" if step == "reject" and order.filled_qty else step)
    order = touched(replace(order, leg_end=None), now, status=status)
    closed = closed_rows(state, now, but=row) if is_final(status) else ()
    return order_change(kind, state, order, (row, *closed))
