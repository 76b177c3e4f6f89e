"""The history that the last restore has lost: orders, keys and amends that may have been sent under the same ids.

Client order ids and amend ids are derived from keys, so a client that repeats a key after the restore gets the ids
of the lost history. Reads the database's marker; decides what must be looked up at a venue first.
"""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial

import structlog

from switchyard.domain import decisions
from switchyard.domain.ids import VenueClientOrderId, VenueName, other_generations
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.amends import amend_rows, last_id
from switchyard.domain.orders.keys import is_lost_key_alive
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import MayBeLost, OrderState, OutboxRow, is_first_attempt, never_lost
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.flow.commit.sequencer import Commit, decide
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.venue import Capabilities, VenueAmend, VenueOrder

# The ends of a doubt after which nothing of the lost history is at the venue.
_NOT_THERE = ("ABSENT_AT_VENUE", "NOT_SENT_BY_DECISION")


class LostHistory:
    """Tells what the lost history may have sent."""

    def __init__(
        self,
        restored_at: datetime | None,
        key_ttl: timedelta,
        capabilities: Mapping[VenueName, Capabilities],
        clock: Clock,
    ) -> None:
        """`restored_at`: the last restore, none if there was none; `key_ttl`: of the keys that live longest."""
        self._restored_at = restored_at
        self._key_ttl = key_ttl
        self._capabilities = capabilities
        self.clock = clock

    def may_have_sent(self, order: Order, row: OutboxRow) -> bool:
        """Whether the order, or the amend, of this row may be at the venue although no attempt from here says so.

        Rows of before the restore are in doubt since. Where the venue is asked before the first attempt, an order that
        was attempted was absent.
        """
        if row.kind == "cancel" or row.last_error in _NOT_THERE or not self._may_repeat(row.created_at):
            return False
        if row.kind == "amend":
            return True
        return order.idempotency_key is not None and (is_first_attempt(row) or not self.is_asked_first(row.venue))

    def may_have_amended(self, order: Order, row: OutboxRow) -> bool:
        """Whether the order may be at its venue with an amend of the lost history, also after an attempt from here.

        Only a venue that recognises the order itself is not asked before the first attempt. It may answer as it did the
        first time, so its answer does not show the amend.
        """
        capabilities = self._capabilities.get(row.venue)
        return capabilities is not None and capabilities.amend != "none" and self.may_have_sent(order, row)

    def may_have_placed(self, order: Order) -> bool:
        """Whether the order's key may be one of the lost history, at any venue."""
        return order.idempotency_key is not None and self._may_repeat(order.accepted_at)

    def is_asked_first(self, venue: VenueName) -> bool:
        """Whether the venue is asked before the first attempt of an order that may be there.

        One that deduplicates permanently recognises the order itself, and one without a lookup cannot be asked.
        """
        capabilities = self._capabilities.get(venue)
        return capabilities is not None and capabilities.dedupe != "permanent" and capabilities.lookup != "none"

    @property
    def sent_since(self) -> datetime | None:
        """No order that a key of the lost history may repeat was sent before this time; None without a restore."""
        return None if self._restored_at is None else self._restored_at - self._key_ttl

    def _may_repeat(self, requested_at: datetime) -> bool:
        """Whether a request of that time may repeat a key of the lost history."""
        restored_at = self._restored_at
        if restored_at is None or requested_at < restored_at:
            return False
        return is_lost_key_alive(restored_at, self._key_ttl, requested_at, self.clock.jumped_at)


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
        may_be_amended: MayBeLost = never_lost,
    ) -> None:
        """`restored_seq`: the first number after the last restore, none if there was none; `venues_of`: a route.

        `may_be_amended`: whether an order that was sent from here since may have an amend of the lost history.
        """
        self._may_be_amended = may_be_amended
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
        shown, amend = decisions.shown_terms(state, report, filled, self._clock.now())
        if amend is not None and (filled != shown.qty or report.status != "FILLED"):
            return True  # it was carried out: its amounts may be others than those that are requested here
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
        amends = (*found.amends, *_asked_amend(state, found))
        for place, amend in enumerate(amends):
            if amend.client_order_id in _sent_ids(state):
                previous = amend.client_order_id
                continue
            if not await self._is_own(state.order, amend):
                continue
            later = {other.client_order_id for other in amends[place + 1 :]}
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
            shown=amend.amounts,
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
        if row.seq < self._restored_seq or not row.attempt or row.last_error == "CONFLICT_PROCESSED":
            return True
        return self._may_be_amended(state.order, row)


def _asked_amend(state: OrderState, found: VenueOrder) -> tuple[VenueAmend, ...]:
    """The amend that was asked for by its own id, if no other one followed it: `VenueOrder.amends` does not have it."""
    client_id = found.venue_client_order_id
    is_listed = any(amend.client_order_id == client_id for amend in found.amends)
    if is_listed or not any(row.venue_client_order_id == client_id for row in amend_rows(state)):
        return ()
    return (
        VenueAmend(
            client_order_id=client_id, replaces=True, qty=found.qty, price=found.price, stop_price=found.stop_price
        ),
    )


def _sent_ids(state: OrderState) -> set[VenueClientOrderId]:
    """The ids of the amends that are recorded as carried out."""
    return {row.venue_client_order_id for row in amend_rows(state) if row.status == "sent"}
