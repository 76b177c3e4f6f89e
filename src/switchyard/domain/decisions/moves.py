"""An order that was not sent from here goes to another venue, or is found there after a restore."""

from datetime import datetime
from decimal import Decimal

from msgspec.structs import replace

from switchyard.domain.amends import open_amend
from switchyard.domain.changes import Change, merged
from switchyard.domain.decisions.amend import adopt_amend
from switchyard.domain.decisions.at_venue import is_at_venue
from switchyard.domain.decisions.attempts import record_doubt, record_sent
from switchyard.domain.decisions.rows import closed_rows, moved, order_change, touched
from switchyard.domain.facts import RerouteFact
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.lifecycle import next_status
from switchyard.domain.outbox import SETTLED, OrderState, OutboxRow
from switchyard.domain.reasons import bounded_detail


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
    qty: Decimal | None = None,
) -> Change | None:
    """The lost history sent the order to this venue, under this id: it goes on there.

    Under a later id of its key it goes on as after an amend that has replaced it, with the quantity of that order.
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
            qty=qty,
            price=None,
            stop_price=None,
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
