"""An account amends an order: the request, and each outcome that an amend can have (ADR 23)."""

from collections.abc import Container
from datetime import datetime
from decimal import Decimal

from msgspec.structs import replace

from switchyard.domain.decisions.rows import (
    closed_rows,
    ended_attempt,
    has_pending_cancel,
    order_change,
    row_facts,
    touched,
)
from switchyard.domain.errors import AmendPending, CancelPending, OrderFinal, QtyFilled, TooManyAmends
from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.journal.changes import Change, merged
from switchyard.domain.journal.events import EventType, change_of, event, key_fact
from switchyard.domain.journal.facts import OrderFact
from switchyard.domain.orders.amends import (
    AMENDS_MAX,
    Amend,
    Amounts,
    amend_of,
    amend_rows,
    as_shown,
    last_id,
    open_amend,
    payload_of,
)
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.lifecycle import FINAL, Step, is_final, next_status
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import SETTLED, MayBeLost, OrderState, OutboxRow, never_lost, queued_row
from switchyard.domain.orders.reasons import SendCode
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.risk.claims import Claim
from switchyard.domain.values import plain

_END_STEPS: dict[str, Step] = {"CANCELED": "canceled", "EXPIRED": "expire", "REJECTED": "reject"}
assert set(_END_STEPS) == FINAL - {"FILLED"}
# Of an answer that shows no amounts: the amend has those that were requested.
NOT_SHOWN = Amounts()


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
    state: OrderState,
    amend: Amend,
    key: KeyEntry,
    now: datetime,
    *,
    reducing: bool,
    claim: Claim | None = None,
    may_be_lost: MayBeLost = never_lost,
) -> Change:
    """Queue an amend, or change an order of which nothing was ever sent; raises as `check_amendable`.

    The order reserves the larger of the old and the new amounts from this commit on. `reducing` as in `Order`, with the
    new quantity. What a lost history may have sent waits for the venue.
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
    row = replace(row, bytes_sent=may_be_lost(order, row))
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
    if not _was_never_sent(state) or may_be_lost(order, state.row("new", 1)):
        return request
    after = OrderState(order=requested, outbox=(*state.outbox, row))
    dead = ended_attempt(row, now, "dead", "AMENDED_BEFORE_SENDING", None)
    # No venue ever sees the amend's id: the order goes out, and is cancelled, under its own.
    changed = with_terms(requested, replace(amend, replaces=False))
    return merged([request, _settled("Amended", after, changed, dead, now)])


def record_amended(
    state: OrderState, row: OutboxRow, venue_order_id: str | None, now: datetime, shown: Amounts = NOT_SHOWN
) -> Change:
    """The venue has carried the amend out, with these amounts.

    A key that a client repeats after a restore may have another body than the amend that the lost history sent.
    """
    sent = ended_attempt(row, now, "sent", None, None, bytes_sent=True)
    amended = with_terms(state.order, as_shown(amend_of(row), shown))
    if venue_order_id:
        amended = replace(amended, venue_order_id=venue_order_id)
    return _settled("Amended", state, amended, sent, now)


def record_amend_refused(
    state: OrderState, row: OutboxRow, code: SendCode, now: datetime, *, detail: str | None = None
) -> Change:
    """The amend ended without effect: the order keeps its amounts, and ends if the venue had reported its end."""
    dead = ended_attempt(row, now, "dead", code, detail)
    return _settled("AmendRefused", state, without_amend(state.order), dead, now)


def adopt_amend(
    state: OrderState,
    client_order_id: VenueClientOrderId,
    now: datetime,
    *,
    replaces: bool,
    shown: Amounts = NOT_SHOWN,
    venue_order_id: str | None,
    later: Container[VenueClientOrderId] = (),
    is_superseded: bool = False,
) -> Change | None:
    """Record an amend that the venue shows as carried out and that this database does not have, or has not sent.

    It was sent by a history that a restore has lost. The order has the amounts that the venue shows; one that it does
    not show is that of the request, or the order's own. `later` are the amends that the venue has carried out after it;
    `is_superseded` if one of them is recorded here: the order keeps its amounts then, and the row only tells whose
    order the reports under its id are about. None where the amend is recorded already, or is being sent.
    """
    row = _amend_row(state, client_order_id)
    if row is not None:
        if row.status in ("sent", "sending"):
            return None
        if is_superseded:
            return None if row.status == "dead" else record_amend_refused(state, row, "RESTORED", now)
        if row.status != "dead":
            return record_amended(state, row, venue_order_id, now, shown)
        # It was taken for refused; another one may have been requested since, and stays reserved.
        amended, sent = _contradicted(state.order, row, now, shown)
        amended = replace(amended, venue_order_id=venue_order_id or amended.venue_order_id)
        return _settled("Amended", state, amended, sent, now)
    order, now = state.order, max(now, state.order.updated_at)
    unchanged = Amend(
        client_order_id=client_order_id,
        orig_client_order_id=last_id(state),
        qty=order.qty,
        price=order.price,
        stop_price=order.stop_price,
        reserve_price=order.reserve_price,
        replaces=replaces,
    )
    amend = as_shown(unchanged, shown)
    row = queued_row(
        order, "amend", len(amend_rows(state)) + 1, now, client_order_id=client_order_id, payload=payload_of(amend)
    )
    if is_superseded:
        dead = replace(row, status="dead", last_error="RESTORED", bytes_sent=True)
        return _settled("AmendRefused", state, order, dead, now)
    sent = replace(row, status="sent", last_error="RESTORED", bytes_sent=True)
    amended = replace(with_terms(order, amend), venue_order_id=venue_order_id or order.venue_order_id)
    pending = open_amend(state)
    if pending is None:
        return _settled("Amended", state, amended, sent, now)
    if pending.status == "uncertain" and pending.venue_client_order_id not in later:
        # The lost history amended the order again, so whether it carried this one out makes no difference any more.
        return _settled("Amended", state, amended, sent, now, ended_attempt(pending, now, "dead", "RESTORED", None))
    # Requested since the restore: it stays reserved until it is settled.
    reserved = replace(amended, amend_qty=order.amend_qty, amend_reserve_price=order.amend_reserve_price)
    return _settled("Amended", state, reserved, sent, now)


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
    if row.status in SETTLED:
        return _contradicted(order, row, now)
    return with_terms(order, amend_of(row)), ended_attempt(row, now, "sent", None, None, bytes_sent=True)


def _contradicted(order: Order, row: OutboxRow, now: datetime, shown: Amounts = NOT_SHOWN) -> tuple[Order, OutboxRow]:
    """The order and the row of an amend that was taken for refused, and that the venue has carried out.

    Another one may have been requested since, and stays reserved.
    """
    amended = with_terms(order, as_shown(amend_of(row), shown))
    amended = replace(amended, amend_qty=order.amend_qty, amend_reserve_price=order.amend_reserve_price)
    return amended, ended_attempt(row, now, "sent", "CONTRADICTED", row.last_error, bytes_sent=True)


def _shown_amend(state: OrderState, report: ExecutionReport, filled: Decimal) -> OutboxRow | None:
    """The amend, not settled as sent yet, that the report shows as carried out.

    It comes under the amend's own id, more is filled than the order had before, or the venue calls the order filled at
    the lower quantity of the amend.
    """
    if report.leg_client_order_id is not None:
        own = _amend_row(state, report.leg_client_order_id)
        is_superseded = own is not None and own.status == "dead" and own.last_error == "RESTORED"
        return None if own is None or own.status == "sent" or is_superseded else own
    row, order = open_amend(state), state.order
    if row is None or not _may_be_at_venue(row):
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
    return max(order.qty, order.amend_qty) if row is not None and _may_be_at_venue(row) else order.qty


def may_be_replaced(state: OrderState) -> bool:
    """Whether an attempt of the amend that is not settled may have replaced the order at the venue."""
    row = open_amend(state)
    return row is not None and _may_be_at_venue(row) and row.status != "failed" and amend_of(row).replaces


def _amend_row(state: OrderState, client_order_id: VenueClientOrderId) -> OutboxRow | None:
    return next((row for row in amend_rows(state) if row.venue_client_order_id == client_order_id), None)


def _may_be_at_venue(row: OutboxRow) -> bool:
    """Whether an attempt has begun, here or, after a restore, in the history that was lost."""
    return row.attempt > 0 or row.bytes_sent


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


def _settled(
    kind: EventType, state: OrderState, order: Order, row: OutboxRow, now: datetime, *others: OutboxRow
) -> Change:
    """The change that settles an amend, and other rows; the order may have been waiting for it to end."""
    status = order.status
    if not is_final(status):
        if order.filled_qty >= order.qty:
            status = next_status(status, "fill")
        elif order.leg_end is not None:
            step = _END_STEPS[order.leg_end]
            status = next_status(status, "reject_part_filled" if step == "reject" and order.filled_qty else step)
    order = touched(replace(order, leg_end=None), now, status=status)
    settled = {settled.key for settled in (row, *others)}
    closed = closed_rows(state, now) if is_final(status) else ()
    return order_change(kind, state, order, (row, *others, *(one for one in closed if one.key not in settled)))
