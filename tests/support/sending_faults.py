"""Ports of one worker that delay, fail, lose answers, pause and die, by a plan out of a seed."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from switchyard.adapters.venues.paper.book import cursor_text, number_of
from switchyard.domain.errors import GroupRejected, JournalUnavailable, OutcomeUnknown
from switchyard.domain.ids import OrderId, VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.journal.changes import Change, Committed, Outcome
from switchyard.domain.orders.amends import Amend
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxRow
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.ports.outbox import NOTHING_DECLARED, LaneShare
from switchyard.ports.venue import (
    Accepted,
    Ambiguous,
    Capabilities,
    OnDeparture,
    OrderToFind,
    ProbeResult,
    ReportPage,
    SendOutcome,
    Unsent,
    VenueOrder,
    VenueRejected,
    VenueUnavailable,
    ignore_departure,
)
from tests.support.wrapped import Forwarding


class Plan(msgspec.Struct):
    """What may go wrong, as probabilities; `calm` stops all of it."""

    unavailable: float = 0.0
    lost: float = 0.0
    rejected: float = 0.0
    unread: float = 0.0
    slow: float = 0.0
    refused: float = 0.0
    ambiguous: float = 0.0
    venue_rejects: float = 0.0
    limited: float = 0.0
    slow_seconds: float = 1.0

    def calm(self) -> None:
        for field in self.__struct_fields__:
            setattr(self, field, 0.0)


class Faults(NamedTuple):
    """The plan, its random numbers, and the worker's gate."""

    plan: Plan
    random: random.Random
    gate: asyncio.Event
    """Closed while the worker is paused, and for ever once it is dead."""

    def happens(self, probability: float) -> bool:
        return self.random.random() < probability

    async def passes(self, seconds: float = 0.002) -> None:
        """Some time, sometimes a long one; longer if the worker is paused meanwhile."""
        slow = self.happens(self.plan.slow)
        await asyncio.sleep(self.random.uniform(0, self.plan.slow_seconds if slow else seconds))
        while not self.gate.is_set():
            await self.gate.wait()


class FaultyJournal(Forwarding):
    """A journal with one connection for appends, as on PostgreSQL: one group at a time."""

    def __init__(self, port: Any, site: Faults, on_committed: Callable[[Sequence[Change]], None]) -> None:
        super().__init__(port)
        self._site = site
        self._turn = asyncio.Lock()
        self._on_committed = on_committed

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        site, plan = self._site, self._site.plan
        async with self._turn:
            await site.passes()
            if site.happens(plan.unavailable):
                raise JournalUnavailable("planned: not written")
            if site.happens(plan.rejected):
                raise GroupRejected("planned: not written")
            is_lost = site.happens(plan.lost)
            if is_lost and site.happens(0.3):
                raise OutcomeUnknown("planned: the request was lost")
            outcomes: list[Outcome] = await self.port.append(shard, group_id, changes, now)
            committed = zip(changes, outcomes, strict=True)
            self._on_committed([change for change, outcome in committed if isinstance(outcome, Committed)])
            await site.passes()
            if is_lost:
                raise OutcomeUnknown("planned: the answer was lost")
        return outcomes

    async def load(self, order_ids: Sequence[OrderId]) -> Any:
        await self._reads()
        states = await self.port.load(order_ids)
        await self._site.passes()
        return states

    async def load_by_client_order_id(self, ids: Sequence[VenueClientOrderId]) -> Any:
        await self._reads()
        return await self.port.load_by_client_order_id(ids)

    async def _reads(self) -> None:
        await self._site.passes()
        if self._site.happens(self._site.plan.unread):
            raise JournalUnavailable("planned: not read")


class FaultyQueries(Forwarding):
    """Queries whose answers are old when they arrive."""

    def __init__(self, port: Any, site: Faults) -> None:
        super().__init__(port)
        self._site = site

    async def due(self, *arguments: Any, **options: Any) -> Any:
        return await self._read(self.port.due, *arguments, **options)

    async def unsettled(self, *arguments: Any, **options: Any) -> Any:
        return await self._read(self.port.unsettled, *arguments, **options)

    async def _read(self, query: Any, *arguments: Any, **options: Any) -> Any:
        await self._site.passes()
        if self._site.happens(self._site.plan.unread):
            raise JournalUnavailable("planned: not read")
        page = await query(*arguments, **options)
        await self._site.passes()
        return page


class FaultyLiveness(Forwarding):
    """A liveness that answers late."""

    def __init__(self, port: Any, site: Faults) -> None:
        super().__init__(port)
        self._site = site

    async def dead(self, workers: Sequence[WorkerId]) -> frozenset[WorkerId]:
        await self._site.passes()
        dead: frozenset[WorkerId] = await self.port.dead(workers)
        await self._site.passes()
        return dead


class FaultyLanes(Forwarding):
    """Lanes whose renewal takes time."""

    def __init__(self, port: Any, site: Faults) -> None:
        super().__init__(port)
        self._site = site

    async def hold(
        self, worker: WorkerId, given_up: Sequence[int], declared: Mapping[VenueName, str] = NOTHING_DECLARED
    ) -> LaneShare:
        await self._site.passes()
        if self._site.happens(self._site.plan.unread):
            raise JournalUnavailable("planned: not renewed")
        share: LaneShare = await self.port.hold(worker, given_up, declared)
        await self._site.passes()
        return share


class Departure(NamedTuple):
    """A request that left for the venue."""

    order: Order
    worker: WorkerId
    at: float


class FaultyVenue:
    """A venue itself, which all workers share: what left for it, what it executed, what it reports."""

    def __init__(self, name: VenueName, capabilities: Capabilities, detects_departure: bool) -> None:
        self.name = name
        self.capabilities = capabilities
        self.detects_departure = detects_departure
        self.departures: list[Departure] = []
        self.executed: dict[VenueClientOrderId, int] = {}
        self.orders: dict[VenueClientOrderId, Order] = {}
        self.turned_down: set[OrderId] = set()
        """Orders of which an attempt was not processed by the venue: they have lost their places."""
        self.reports: list[ExecutionReport] = []

    def execute(self, order: Order, now: datetime, random: random.Random) -> bool:
        """Take the order; false where it is recognised."""
        client_id = order.venue_client_order_id
        if client_id in self.executed and self.capabilities.dedupe in ("permanent", "ttl"):
            return False
        self.executed[client_id] = self.executed.get(client_id, 0) + 1
        self.orders[client_id] = order
        if random.random() < 0.5:
            self.reports.append(
                ExecutionReport(
                    exec_id=f"exec-{len(self.reports)}",
                    venue=self.name,
                    venue_client_order_id=client_id,
                    venue_order_id=f"v-{client_id}",
                    status="FILLED",
                    last_qty=order.qty,
                    last_price=order.price,
                    filled_qty_total=order.qty,
                    at=now,
                )
            )
        return True

    def reports_on(self, order: Order) -> tuple[ExecutionReport, ...]:
        """The reports on an order."""
        return tuple(report for report in self.reports if report.venue_client_order_id == order.venue_client_order_id)


class VenueOfWorker:
    """One worker's adapter of the venue."""

    def __init__(self, venue: FaultyVenue, worker: WorkerId, site: Faults, now: Callable[[], datetime]) -> None:
        self.name = venue.name
        self.capabilities = venue.capabilities
        self.on_submit: Callable[[], None] = lambda: None
        self._venue = venue
        self._worker = worker
        self._site = site
        self._now = now

    async def submit_many(
        self, orders: Sequence[Order], on_departure: OnDeparture = ignore_departure
    ) -> list[SendOutcome]:
        site, plan = self._site, self._site.plan
        self.on_submit()
        await site.passes()
        if site.happens(plan.refused):
            self._venue.turned_down.update(order.order_id for order in orders)
            return [Unsent("BROKER_DOWN")] * len(orders)
        at = asyncio.get_running_loop().time()
        self._venue.departures += [Departure(order, self._worker, at) for order in orders]
        outcomes = [self._outcome(order) for order in orders]
        if self._venue.detects_departure:
            on_departure()
        await site.passes(0.02)
        return outcomes

    def _outcome(self, order: Order) -> SendOutcome:
        site, plan = self._site, self._site.plan
        if site.happens(plan.limited):
            self._venue.turned_down.add(order.order_id)
            return Unsent("RATE_LIMITED", retry_after=timedelta(seconds=1), bytes_sent=True)
        if site.happens(plan.venue_rejects) and order.venue_client_order_id not in self._venue.executed:
            return VenueRejected("BROKER_REJECTED")
        is_lost = site.happens(plan.ambiguous)
        if is_lost and site.happens(0.5):
            return Ambiguous("NETWORK_TIMEOUT")
        is_new = self._venue.execute(order, self._now(), site.random)
        if is_lost:
            return Ambiguous("NETWORK_DISCONNECTED")
        carried = self._venue.reports_on(order) if is_new and site.happens(0.5) else ()
        return Accepted(f"v-{order.venue_client_order_id}", already_processed=not is_new, reports=carried)

    async def cancel(self, order: Order) -> SendOutcome:
        await self._site.passes()
        return VenueRejected("ORDER_FINAL")

    async def amend(self, order: Order, amend: Amend) -> SendOutcome:
        return VenueRejected("BAD_REQUEST")

    async def find(self, order: OrderToFind) -> VenueOrder | None:
        await self._site.passes()
        client_id = order.client_order_id
        found = self._venue.orders.get(client_id)
        if found is None:
            return None
        return VenueOrder(
            venue_client_order_id=client_id, venue_order_id=f"v-{client_id}", status="WORKING", filled_qty=found.qty * 0
        )

    async def reports(self, after: str | None, limit: int) -> ReportPage:
        await self._site.passes(0.2)
        if self._site.happens(self._site.plan.unread):
            raise VenueUnavailable("planned")
        first = number_of(after)
        page = self._venue.reports[first : first + limit]
        if not page:
            await asyncio.sleep(0.1)
        return ReportPage(page, cursor_text(first + len(page)))

    async def probe(self) -> ProbeResult:
        await self._site.passes()
        return "answered"


def new_rows(change: Change) -> list[OutboxRow]:
    """The orders' own rows that a change writes, every version of them."""
    return [row for row in change.outbox if row.kind == "new"]
