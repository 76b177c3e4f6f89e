"""The dispatcher, its recovery and the resolver over one order at a scripted venue, on the in-memory database."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from switchyard.adapters.memory.clock import ManualClock, SeededRandomness
from switchyard.adapters.memory.database import MemoryDatabase
from switchyard.domain import decisions
from switchyard.domain.ids import VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.amends import Amend
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxRow
from switchyard.domain.values import ZERO
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.clock import Wake
from switchyard.flow.results import OrderResults
from switchyard.flow.sending.dispatch import Dispatcher
from switchyard.flow.sending.lanes import HeldLanes, WaitingLanes
from switchyard.flow.sending.lost_keys import LostKeys
from switchyard.flow.sending.outcomes import OutcomeWriter
from switchyard.flow.sending.pre_send_checks import FirstSends
from switchyard.flow.sending.resolve import Resolver, VenueWatch
from switchyard.ports.venue import (
    Accepted,
    Capabilities,
    Dedupe,
    Lookup,
    OnDeparture,
    OrderToFind,
    ProbeResult,
    ReportPage,
    SendOutcome,
    VenueOrder,
    VenueUnavailable,
    ignore_departure,
)
from switchyard.telemetry.metrics import Metrics
from tests.support.build import VENUE, an_accept
from tests.support.one_by_one import OneByOne
from tests.support.sequencing import running_sequencer

SECOND = timedelta(seconds=1)
WINDOW = timedelta(seconds=10)


class ScriptedVenue(OneByOne):
    """A venue with scripted answers that counts the orders that reached it."""

    def __init__(self, dedupe: Dedupe) -> None:
        self.name: VenueName = VENUE
        lookup: Lookup = "none" if dedupe == "none" else "all"
        self.capabilities = Capabilities(dedupe=dedupe, lookup=lookup, acceptance_window=WINDOW)
        self.answer: SendOutcome = Accepted("venue-1")
        self.orders: dict[VenueClientOrderId, int] = {}
        self.takes_orders = True
        self.can_be_asked = True
        self.while_asked: Callable[[], Awaitable[None]] | None = None
        self.shown: dict[str, Any] = {}
        """What a lookup shows of an order besides its ids."""

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        if self.takes_orders:
            self.orders[order.venue_client_order_id] = self.orders.get(order.venue_client_order_id, 0) + 1
        return self.answer

    async def cancel(self, order: Order) -> SendOutcome:
        return self.answer

    async def amend(self, order: Order, amend: Amend) -> SendOutcome:
        return self.answer

    async def find(self, order: OrderToFind) -> VenueOrder | None:
        if not self.can_be_asked:
            raise VenueUnavailable("no answer")
        found = order.client_order_id in self.orders
        if self.while_asked is not None:
            await self.while_asked()
        if not found:
            return None
        return VenueOrder(
            venue_client_order_id=order.client_order_id,
            venue_order_id="venue-1",
            status="WORKING",
            filled_qty=ZERO,
            **self.shown,
        )

    async def probe(self) -> ProbeResult:
        if not self.can_be_asked:
            raise VenueUnavailable("no answer")
        return "answered"

    async def open_orders(self) -> AsyncIterator[list[VenueOrder]]:
        yield []

    async def reports(self, after: str | None, limit: int) -> ReportPage:
        return ReportPage([], after)


class Setup:
    """One worker with its resolver over one order."""

    def __init__(self, dedupe: Dedupe, worker: str = "one") -> None:
        self.clock = ManualClock()
        database = MemoryDatabase(self.clock)
        self.journal = database.journal
        self.venue = ScriptedVenue(dedupe)
        self.liveness = database.liveness
        self.metrics = Metrics()
        self._database, self._worker = database, WorkerId(worker)
        self._results = OrderResults(queries=database.queries, catalogue=Catalogue(), metrics=self.metrics)
        self.restart()

    def restart(self) -> None:
        """Build the stages anew: what they kept in memory is lost."""
        database, worker = self._database, self._worker
        common = {
            "queries": database.queries,
            "liveness": self.liveness,
            "clock": self.clock,
            "metrics": self.metrics,
        }
        sequencer = running_sequencer(self.journal, self.clock, self.metrics, self._results)
        self.commit = sequencer.commit
        self.watch = VenueWatch(self.venue, clock=self.clock, metrics=self.metrics)
        self.resolver = Resolver(self.watch, journal=self.journal, commit=self.commit, **common)  # type: ignore[arg-type]
        self.kills = ActiveKills(database.kills, self.metrics)
        randomness = SeededRandomness()
        self.outcomes = OutcomeWriter(
            worker=worker,
            sequencer=sequencer,
            venues={VENUE: self.venue},
            clock=self.clock,
            randomness=randomness,
            metrics=self.metrics,
            retries=decisions.retry_limits(8),
            first_sends=FirstSends({VENUE: self.venue}, self.clock),
            inline_reports={},
        )
        self.lanes = HeldLanes(database.lanes, worker, self.clock)
        self.dispatcher = Dispatcher(
            worker=worker,
            sequencer=sequencer,
            lanes=self.lanes,
            randomness=randomness,
            batch_size=8,
            parallelism=1,
            retry_max=8,
            idle_seconds=0.01,
            stuck_after=timedelta(minutes=10),
            kills=self.kills,
            lost_keys=self.lost_keys(),
            waiting=WaitingLanes(Wake()),
            venues={VENUE: self.venue},
            **common,  # type: ignore[arg-type]
        )
        self.dispatcher.open_venue(VENUE)

    def lost_keys(self) -> LostKeys | None:
        """None: the database was never restored."""
        return None

    async def accept(
        self, time_in_force: str = "GTC", expires_at: datetime | None = None, key: str | None = None
    ) -> OrderState:
        change = an_accept(time_in_force=time_in_force, now=self.clock.now(), expires_at=expires_at, key=key)
        await self.commit(change)
        self._order_id = change.orders[0].order_id
        return await self.state()

    async def stuck(self, attempt: int = 1) -> OutboxRow:
        """An attempt of this worker that another worker took for stuck."""
        accepted = await self.accept()
        row = msgspec.structs.replace(accepted.row("new", 1), attempt=attempt - 1)
        begun = decisions.begin_attempt(accepted, row, WorkerId("one"), self.clock.now())
        await self.commit(begun)
        state = await self.state()
        suspected = decisions.record_doubt(
            state, state.row("new", 1), "STUCK", None, self.clock.now(), suspect=WorkerId("one")
        )
        await self.commit(suspected)
        return begun.outbox[0]

    async def state(self) -> OrderState:
        return (await self.journal.load([self._order_id]))[self._order_id]

    async def send(self) -> OrderState:
        await self.lanes.renew()
        await self.dispatcher.run_once()
        await self.dispatcher.drain(10)
        return await self.state()

    async def resolve(self, after: timedelta = timedelta()) -> int:
        """Ask about the order now, and again after this time, in which the venue is probed every second."""
        await self.watch.probe_once()
        settled = await self.resolver.run_once()
        for _ in range(int(after / SECOND)):
            self.clock.advance(SECOND)
            await self.watch.probe_once()
        return settled + await self.resolver.run_once()

    def promise(self, **capabilities: Any) -> None:
        """Change the venue's declared capabilities."""
        self.venue.capabilities = replace(self.venue.capabilities, **capabilities)

    def sent_count(self) -> int:
        return sum(self.venue.orders.values())
