"""What the history that a restore has lost made of an order: records it from what the venues show.

It may have amended the order: the venue has other amounts, or another order in its place, and the end of the order that
is known here is not the end of the order. It may have sent the order to another venue of its route, or under a later id
of its key. Reads orders and writes through `Commit`; its callers ask the venues.
"""

from collections.abc import Callable, Collection, Sequence, Set
from decimal import Decimal
from functools import partial

import structlog

from switchyard.domain import decisions
from switchyard.domain.ids import VenueClientOrderId, VenueName, other_generations
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.amends import amend_rows, last_id
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.flow.commit.sequencer import Commit, decide
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.venue import VenueAmend, VenueOrder

log = structlog.get_logger()


# Ids of a key before the one that a venue shows: so many times a key may have been used again since the order of here.
GENERATIONS_MAX = 64


def _no_route(_symbol: str) -> Sequence[VenueName]:
    return ()


class LostAmends:
    """Records where orders are, and with which amends, after the history that the last restore has lost."""

    def __init__(
        self,
        *,
        restored_seq: int | None,
        is_ours: Callable[[VenueClientOrderId], bool],
        journal: Journal,
        commit: Commit,
        clock: Clock,
        venues_of: Callable[[str], Sequence[VenueName]] = _no_route,
    ) -> None:
        """`restored_seq`: the first number after the last restore, none if there was none; `venues_of`: a route."""
        self._venues_of = venues_of
        self.is_restored = restored_seq is not None
        self._restored_seq = restored_seq or 0
        self._is_ours = is_ours
        self._journal = journal
        self._commit = commit
        self._clock = clock

    def must_ask(self, state: OrderState, report: ExecutionReport, filled: Decimal) -> bool:
        """Whether the venue must be asked before the report is applied, because it may wrongly end the order.

        `filled` is the filled quantity with the report. An order that the venue calls filled at the quantity that is
        known here was not replaced.
        """
        if is_final(state.order.status) or not self._may_lack(state):
            return False
        if self._may_differ(state):
            return True
        if report.status in ("CANCELED", "REJECTED", "EXPIRED"):
            return True
        qty = state.order.qty
        return filled > qty or (filled == qty and report.status != "FILLED")

    async def adopt_order(self, state: OrderState, venue: VenueName, client_id: VenueClientOrderId) -> bool:
        """Record that the lost history sent the order to this venue, which reports on it under this id.

        Returns whether it is there now: nothing of it may have departed from here.
        """
        if not self.may_have_sent_to(venue, state.order):
            return False
        order_id = state.order.order_id
        change = await decide(
            self._journal,
            self._commit,
            order_id,
            lambda newest: decisions.adopt_order(newest, venue, client_id, self._clock.now()),
        )
        if change is not None:
            log.warning("order_adopted", order_id=order_id, venue=venue, client_order_id=client_id)
        return change is not None

    def may_have_sent_to(self, venue: VenueName, order: Order) -> bool:
        """Whether a lost history may have sent the order to this venue."""
        return self.is_restored and (venue == order.venue or venue in self._venues_of(order.symbol))

    async def adopt_reported(self, venue: VenueName, strays: Collection[VenueClientOrderId]) -> set[VenueClientOrderId]:
        """Record the orders of which the venue reports a later id of their key; returns the ids that have an order.

        The newest id first: a key is used again only after its earlier orders have ended.
        """
        known = set(await self._journal.load_by_client_order_id(list(strays)))
        for client_id in sorted(set(strays) - known, reverse=True):
            earlier = await self._journal.load_by_client_order_id(other_generations(client_id, -GENERATIONS_MAX))
            for state in earlier.values():
                if await self.adopt_order(state, venue, client_id):
                    known.add(client_id)
                    break
        return known

    async def adopt(self, state: OrderState, found: VenueOrder) -> bool:
        """Record the amends of the order that the venue shows and that are not recorded here.

        Returns whether all are recorded now. One that is being sent is not: what the venue shows is then not the order
        that is known here, and the venue must be asked again. `state` was read before the venue was asked. The amends
        are recorded in the venue's order; one that precedes the last one recorded here changes no amounts. Those of
        another system are left alone: a lost amend has an id of this installation.
        """
        if not self.is_restored:
            return True
        await self._adopt_qty(state, found)
        previous = last_id(state)
        for place, amend in enumerate(found.amends):
            if amend.client_order_id in _sent_ids(state):
                previous = amend.client_order_id
                continue
            if not await self._is_own(state.order, amend):
                continue
            later = {other.client_order_id for other in found.amends[place + 1 :]}
            decision = partial(self._decision, amend, found, previous, later)
            change = await decide(self._journal, self._commit, state.order.order_id, decision)
            if change is not None:
                self._note(change, amend)
            if later.isdisjoint(_sent_ids(state)):
                if change is None:
                    return False  # it is being sent, or the order was amended since: the next lookup shows that
                previous = amend.client_order_id
        return True

    async def _adopt_qty(self, state: OrderState, found: VenueOrder) -> None:
        """Give an order that closes a position the quantity that the lost history had decided."""

        def decision(newest: OrderState) -> Change | None:
            if found.qty is None or not self._may_differ(newest) or newest.order.qty == found.qty:
                return None
            return decisions.adopt_qty(newest, found.qty, self._clock.now())

        if found.qty is None or found.amends or found.qty == state.order.qty or not self._may_differ(state):
            return
        if await decide(self._journal, self._commit, state.order.order_id, decision) is not None:
            log.warning("order_adopted", order_id=state.order.order_id, venue=state.order.venue, qty=str(found.qty))

    def _may_differ(self, state: OrderState) -> bool:
        """Whether the order closes a position and is one of the lost history, which decided it by another position."""
        row, order = state.find("new", 1), state.order
        is_unsent = row is not None and (not row.attempt or row.last_error == "CONFLICT_PROCESSED")
        return (
            self.is_restored
            and is_unsent
            and order.reduce_only
            and not is_final(order.status)
            and not amend_rows(state)
        )

    async def _is_own(self, order: Order, amend: VenueAmend) -> bool:
        client_id = amend.client_order_id
        owner = (await self._journal.load_by_client_order_id([client_id])).get(client_id)
        if self._is_ours(client_id) and (owner is None or owner.order.order_id == order.order_id):
            return True
        log.error("amend_unknown", venue=order.venue, order_id=order.order_id, amend_id=client_id)
        return False

    def _decision(
        self,
        amend: VenueAmend,
        found: VenueOrder,
        previous: VenueClientOrderId,
        later: Set[VenueClientOrderId],
        newest: OrderState,
    ) -> Change | None:
        is_superseded = not later.isdisjoint(_sent_ids(newest))
        if not is_superseded and last_id(newest) != previous:
            return None
        return decisions.adopt_amend(
            newest,
            amend.client_order_id,
            self._clock.now(),
            replaces=amend.replaces,
            qty=amend.qty,
            price=amend.price,
            stop_price=amend.stop_price,
            venue_order_id=found.venue_order_id,
            later=later,
            is_superseded=is_superseded,
        )

    def _note(self, change: Change, amend: VenueAmend) -> None:
        order, amend_id = change.orders[-1], amend.client_order_id
        if change.outbox[0].status == "sent":
            log.warning(
                "amend_adopted", venue=order.venue, order_id=order.order_id, amend_id=amend_id, qty=str(order.qty)
            )
        else:
            log.info("amend_superseded", venue=order.venue, order_id=order.order_id, amend_id=amend_id)

    def _may_lack(self, state: OrderState) -> bool:
        """Whether the order is of before the restore, or was at the venue before it was sent from here."""
        row = state.find("new", 1)
        if row is None or not self.is_restored:
            return False
        return row.seq < self._restored_seq or not row.attempt or row.last_error == "CONFLICT_PROCESSED"


def _sent_ids(state: OrderState) -> set[VenueClientOrderId]:
    """The ids of the amends that are recorded as carried out."""
    return {row.venue_client_order_id for row in amend_rows(state) if row.status == "sent"}
