"""An order of which no byte was ever sent goes to another venue."""

from datetime import datetime

from switchyard.domain.changes import Change
from switchyard.domain.decisions.at_venue import is_at_venue
from switchyard.domain.decisions.rows import moved, order_change, touched
from switchyard.domain.facts import RerouteFact
from switchyard.domain.ids import VenueName
from switchyard.domain.outbox import OrderState
from switchyard.domain.reasons import bounded_detail


def may_move(state: OrderState) -> bool:
    """Whether the order is proven unsent: no attempt ever began, or each one ended before its first byte.

    An order in doubt never moves, and neither does one that a lookup found absent: that settles one client order id at
    one venue. A venue that answered 429 has seen the order, so it does not move either. One with an amend that is not
    settled stays until it is: the amend was judged for its venue.
    """
    row = state.find("new", 1)
    if state.order.amend_qty is not None:
        return False
    if row is None or row.bytes_sent or row.status not in ("queued", "failed"):
        return False
    return state.order.status == "ACCEPTED" and not is_at_venue(state.order)


def reroute(state: OrderState, to: VenueName, reason: str, now: datetime) -> Change:
    """Give the order to another venue, due at once; it keeps its place in its line and its client order id."""
    assert may_move(state), "the order may be at its venue"
    order, row = state.order, state.row("new", 1)
    assert to != order.venue, "the order is at this venue already"
    fact = RerouteFact(from_venue=order.venue, to=to, reason=bounded_detail(reason) or "")
    waiting = moved(row, now, venue=to, next_attempt_at=now)
    return order_change("OrderRerouted", state, touched(order, now, venue=to), (waiting,), reroute=fact)
