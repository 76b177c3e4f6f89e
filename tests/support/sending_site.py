"""One or two workers over one in-memory database and one venue, clients that post and cancel, and a judge."""

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, cast

from switchyard.domain import decisions
from switchyard.domain.errors import OrderFinal, OutcomeUnknown, Unavailable
from switchyard.domain.ids import OrderId, VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.journal.changes import Change, Committed, Conflict
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.market.routing import Route, Router
from switchyard.domain.orders.outbox import OutboxRow, lane_of
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.clock import Wake
from switchyard.flow.commit.sequencer import Sequencer, decide
from switchyard.flow.executions.record import InlineReports, Recorder
from switchyard.flow.executions.strays import VenueGate
from switchyard.flow.health.venues import HealthBoard, VenueBreaker, VenueChoice
from switchyard.flow.quotes import QuoteBoard
from switchyard.flow.sending.dispatch import Dispatcher
from switchyard.flow.sending.lanes import HeldLanes, WaitingLanes
from switchyard.flow.sending.resolve import Resolver, VenueWatch
from switchyard.ports.journal import Journal
from switchyard.ports.venue import Capabilities, Venue
from switchyard.telemetry.metrics import Metrics
from tests.support.build import VENUE, an_accept
from tests.support.memory.clock import SeededRandomness
from tests.support.memory.database import MemoryDatabase
from tests.support.sending_faults import (
    Departure,
    Faults,
    FaultyJournal,
    FaultyLanes,
    FaultyLiveness,
    FaultyQueries,
    FaultyVenue,
    Plan,
    VenueOfWorker,
    new_rows,
)
from tests.support.virtual_time import VirtualClock

IDLE_SECONDS = 0.5
RESTART_SECONDS = 1.0
VENUES = (VENUE, VenueName("other"))


def lines_of_few_lanes() -> list[tuple[str, str]]:
    """Accounts and symbols, some of which share a lane."""
    lines = [(f"acc-{number}", symbol) for number in range(40) for symbol in ("USDJPY", "EURUSD")]
    chosen = {lane_of(cast(Any, account), symbol) for account, symbol in lines[:6]}
    return lines[:6] + [line for line in lines[6:] if lane_of(cast(Any, line[0]), line[1]) in chosen][:4]


def a_choice(health: HealthBoard, clock: VirtualClock, metrics: Metrics) -> VenueChoice:
    """Either venue can take the orders of the other one."""
    quotes = QuoteBoard(clock, metrics, age_max=timedelta(seconds=5))
    router = Router(Route(VENUES), {})
    return VenueChoice(router, quotes, catalogue=Catalogue(), health=health, fees_percent={}, taken={})


class Worker:
    """One process: the sequencer, and the stages that send, record and resolve."""

    def __init__(self, name: str, field: "Field", slots: int, seed: int) -> None:
        self.name = WorkerId(name)
        self.field = field
        self.slots = slots
        self.is_alive = True
        gate = asyncio.Event()
        gate.set()
        self.site = Faults(field.plan, field.random, gate)
        self.failures: list[str] = []
        database, clock, metrics = field.database, field.clock, Metrics()
        self.journal = FaultyJournal(database.journal, self.site, field.note)
        journal = cast(Journal, self.journal)
        self.wake = Wake()
        self.waiting = WaitingLanes(self.wake)
        randomness = SeededRandomness(seed)
        self.sequencer = Sequencer(
            journal,
            clock=clock,
            randomness=randomness,
            metrics=metrics,
            wakes=[],
            capacity=10_000,
            on_broken=self.failures.append,
            on_committed=[self.waiting.note],
        )
        self.lanes = HeldLanes(FaultyLanes(database.lanes, self.site), self.name, clock)
        queries: Any = FaultyQueries(database.queries, self.site)
        liveness: Any = FaultyLiveness(database.liveness, self.site)
        adapters = [field.adapter(venue, self.name, self.site, clock.now) for venue in field.venues.values()]
        for adapter in adapters:
            adapter.on_submit = self.check_slots
        venues = {adapter.name: cast(Venue, adapter) for adapter in adapters}
        self.health = HealthBoard()
        self.health.on_change = self.wake.notify
        if field.fails_over:
            self.health.watch(
                VenueBreaker(name, faults_max=2, pause=timedelta(seconds=2), clock=clock, metrics=metrics)
                for name in venues
            )
        inline_reports: dict[VenueName, InlineReports] = {}
        self.dispatcher = Dispatcher(
            worker=self.name,
            sequencer=self.sequencer,
            queries=queries,
            liveness=liveness,
            lanes=self.lanes,
            venues=venues,
            clock=clock,
            randomness=randomness,
            metrics=metrics,
            batch_size=slots,
            parallelism=1,
            retry_max=8,
            idle_seconds=IDLE_SECONDS,
            stuck_after=timedelta(minutes=10),
            kills=ActiveKills(database.kills, metrics),
            waiting=self.waiting,
            health=self.health,
            choice=a_choice(self.health, clock, metrics) if field.fails_over else None,
            inline_reports=inline_reports,
        )
        stages: list[Callable[[], Awaitable[None]]] = [
            self.sequencer.run,
            self.lanes.run,
            lambda: self.dispatcher.run(self.wake),
        ]
        for venue in venues.values():
            breaker = self.health.breaker(venue.name)
            recorder = Recorder(
                venue,
                journal=journal,
                queries=queries,
                sequencer=self.sequencer,
                clock=clock,
                metrics=metrics,
                gate=VenueGate(venue.name, clock=clock, metrics=metrics, breaker=breaker),
            )
            inline_reports[venue.name] = recorder.inline
            watch = VenueWatch(venue, clock=clock, metrics=metrics, breaker=breaker)
            resolver = Resolver(
                watch,
                journal=journal,
                queries=queries,
                liveness=liveness,
                commit=self.sequencer.commit,
                clock=clock,
                metrics=metrics,
            )
            stages += [recorder.run, watch.run, resolver.run]
            self.dispatcher.open_venue(venue.name)
        self.tasks = [asyncio.create_task(self._supervise(stage)) for stage in stages]

    async def _supervise(self, stage: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await stage()
            except (Unavailable, OutcomeUnknown):
                await asyncio.sleep(RESTART_SECONDS)
            except Exception as error:
                self.failures.append(repr(error))
                raise

    def check_slots(self) -> None:
        under_way = len(self.dispatcher._sends._tasks)
        if under_way > self.slots:
            self.failures.append(f"{under_way} attempts under way in {self.slots} slots")

    async def recover(self) -> None:
        """Recover now, as a stage does that starts again."""
        with contextlib.suppress(Unavailable, OutcomeUnknown):
            await self.dispatcher.recover_once()

    async def pause(self, seconds: float) -> None:
        """No I/O of this worker comes back for so long."""
        self.site.gate.clear()
        await asyncio.sleep(seconds)
        if self.is_alive:
            self.site.gate.set()

    def kill(self) -> None:
        """End the process: whatever it does from now on reaches nothing."""
        self.is_alive = False
        self.site.gate.clear()
        self.dispatcher.inline_first_send.stop()
        for task in self.tasks:
            task.cancel()
        self.field.database.liveness.living.discard(self.name)

    def leftovers(self) -> dict[str, Any]:
        """What the worker believes to be under way; empty once all has settled."""
        sends = self.dispatcher._sends
        found = {
            "slots": sends._tasks,
            "under way": +sends._under_way,
            "at the venue": +sends._at_venue,
            "negative": -sends._under_way,
            "lanes": {lane: count for lane, count in self.lanes._under_way.items() if count},
            "lines": sends._departures._last,
            "begun": self.dispatcher.inline_first_send._begun_at,
            "pending": list(self.sequencer._pending),
        }
        return {name: value for name, value in found.items() if value}


class Field:
    """The database, the venue, the workers, and what the clients were told."""

    venue = FaultyVenue
    adapter = VenueOfWorker

    def __init__(
        self,
        seed: int,
        plan: Plan,
        capabilities: Capabilities,
        *,
        detects_departure: bool = True,
        fails_over: bool = False,
    ) -> None:
        self.fails_over = fails_over
        self.random = random.Random(seed)
        self.plan = plan
        self.capabilities = capabilities
        self.plan_rejects = plan.rejected > 0
        self.clock = VirtualClock()
        self.database = MemoryDatabase(self.clock)
        self.venues = {name: self.venue(name, capabilities, detects_departure) for name in VENUES}
        self.workers: list[Worker] = []
        self.lines = lines_of_few_lanes()
        self.keys = [f"key-{number}" for number in range(12)]
        self.acknowledged: set[OrderId] = set()
        self.calls: list[tuple[Worker, asyncio.Task[None]]] = []
        self.history: dict[OrderId, list[tuple[float, OutboxRow]]] = defaultdict(list)
        """Every committed version of each order's row, and when it was committed."""

    def note(self, changes: Sequence[Change]) -> None:
        for change in changes:
            for row in new_rows(change):
                self.history[row.order_id].append((self.clock.monotonic(), row))

    def add_worker(self, slots: int) -> Worker:
        worker = Worker(f"worker-{len(self.workers)}", self, slots, self.random.getrandbits(32))
        self.workers.append(worker)
        return worker

    @property
    def living(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.is_alive]

    def post(self, worker: Worker) -> None:
        """Have a client post an order; some repeat a key, some do not wait for the answer."""
        task = self.call(worker, self._post(worker))
        if self.random.random() < 0.05:
            asyncio.get_running_loop().call_later(self.random.uniform(0, 0.01), task.cancel)

    def call(self, worker: Worker, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have a client call this worker's process."""
        task = asyncio.create_task(call)
        self.calls.append((worker, task))
        return task

    async def _post(self, worker: Worker) -> None:
        line = self.random.randrange(len(self.lines))
        key = self.random.choice(self.keys) if self.random.random() < 0.2 else None
        if key is not None:
            line = int(key[4:]) % len(self.lines)
        account, symbol = self.lines[line]
        time_in_force = self.random.choices(["GTC", "IOC", "DAY", "GTD"], [14, 2, 1, 1])[0]
        now = self.clock.now()
        change = an_accept(
            now=now,
            account=account,
            symbol=symbol,
            key=key,
            venue=VENUES[line % len(VENUES)],
            time_in_force=time_in_force,
            expires_at=now + timedelta(seconds=self.random.uniform(0, 20)) if time_in_force in ("DAY", "GTD") else None,
            post_only=time_in_force == "GTC" and self.random.random() < 0.1,
        )
        try:
            outcome = await worker.sequencer.commit(change)
        except (Unavailable, OutcomeUnknown):
            return
        if isinstance(outcome, Conflict) and outcome.kill is not None:
            return
        if isinstance(outcome, Conflict):
            assert key is not None and outcome.key is not None, f"a conflict without a key: {change.orders[0]}"
            assert outcome.key.idempotency_key == key, f"{key} was answered with {outcome.key}"
            self.acknowledged.add(outcome.key.order_id)
            return
        assert isinstance(outcome, Committed)
        self.acknowledged.add(change.orders[0].order_id)

    async def cancel_one(self, worker: Worker) -> None:
        """Have a client cancel an order that it knows of."""
        if not self.acknowledged:
            return
        order_id = self.random.choice(sorted(self.acknowledged))

        def decision(state: Any) -> Change | None:
            return decisions.request_cancel(state, self.clock.now())

        try:
            await decide(cast(Journal, worker.journal), worker.sequencer.commit, order_id, decision)
        except (Unavailable, OutcomeUnknown, OrderFinal):
            return

    @property
    def departures(self) -> list[Departure]:
        """What left for the venues, by time."""
        return sorted((one for venue in self.venues.values() for one in venue.departures), key=lambda one: one.at)

    @property
    def executed(self) -> dict[VenueClientOrderId, int]:
        """How often each order was executed, at all venues together."""
        executed: Counter[VenueClientOrderId] = Counter()
        for venue in self.venues.values():
            executed.update(venue.executed)
        return executed

    def unsettled(self) -> list[OutboxRow]:
        """The orders' own rows that still wait or are under way."""
        rows = self.database.journal.outbox.values()
        return [row for row in rows if row.kind == "new" and row.status in ("queued", "failed", "sending")]
