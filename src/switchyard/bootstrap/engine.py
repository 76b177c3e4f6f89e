"""One process: opens the database, starts the stages of its role in dependency order and stops them in reverse."""

import asyncio
import gc
import resource
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Literal, Protocol

from switchyard.adapters.files.durable import prepare_data_folder
from switchyard.bootstrap.core import Core, PortWrappers
from switchyard.bootstrap.databases import Database, lookup_decides, open_database
from switchyard.bootstrap.gateway import Caches, Services, start_gateway
from switchyard.bootstrap.pdca import PdcaOffice, Rechecks, start_dispatch, start_pdca, start_rechecks_without_books
from switchyard.bootstrap.readers import start_audit, start_head, start_lease, start_relay, start_streams
from switchyard.bootstrap.venues import (
    clock_offset_of,
    open_credentials,
    open_quotes,
    open_venues,
    taken_orders,
    venue_id_forms,
    venue_states,
)
from switchyard.bootstrap.worker import start_worker
from switchyard.domain.errors import SettingError, SwitchyardError
from switchyard.domain.ids import OrderId, VenueName
from switchyard.domain.journal.facts import DecisionFact
from switchyard.domain.market.health import Check, VenueState
from switchyard.domain.orders.order import Order
from switchyard.domain.risk.kills import AUTOMATIC_KILLS_MAX
from switchyard.flow.bus.relay import Relay
from switchyard.flow.clock import Wake
from switchyard.flow.executions.strays import VenueProblem
from switchyard.flow.health.readiness import (
    DATABASE,
    Gauges,
    ReadinessChecks,
    check_clock,
    check_disks,
    check_journal,
    check_venues,
)
from switchyard.flow.health.venues import HealthReader, VenueChoice
from switchyard.flow.readers.stream import StreamHub
from switchyard.flow.sending.operator import Decider, declared_name, end_doubt, settling_in, standing
from switchyard.settings import Settings, bus_keys


def process_checks(core: Core, *, sends: bool) -> ReadinessChecks:
    """The checks that every role with an engine has."""
    checks = ReadinessChecks(core.clock)
    states = partial(venue_states, core)
    checks.add("process", partial(_check_process, core))
    checks.add("journal", partial(check_journal, core.database.journal, core.sequencer.commit_problem))
    checks.add("worker", partial(_check_worker, core, sends=sends))
    checks.add("venues", partial(check_venues, states))
    checks.add("disk", partial(check_disks, core.disks))
    checks.add("clock", partial(check_clock, core.clock, core.wall_clock, partial(clock_offsets, core)))
    return checks


def clock_offsets(core: Core) -> dict[str, timedelta]:
    """This machine's wall clock minus the database's, and minus that of each venue whose answers show it."""
    ahead = core.wall_clock.now() - core.clock.now()
    venues = {name: clock_offset_of(venue) for name, venue in core.venues.items()}
    offsets: dict[str, timedelta] = {name: ahead - offset for name, offset in venues.items() if offset is not None}
    return {DATABASE: core.clock.database_offset, **offsets}


def add_cache_check(checks: ReadinessChecks, core: Core, caches: Caches) -> None:
    """Whether Redis is used, where one is configured."""
    checks.add("cache", partial(_check_cache, core, caches))


def add_pdca_check(checks: ReadinessChecks, office: PdcaOffice) -> None:
    """Whether strategies and rechecks can be read; orders do not need them."""

    async def check() -> Check:
        tally = await office.store.tally()  # raises Unavailable
        return Check("pdca", "ok", f"its store answers: {tally.succeeded + tally.failed} rechecks have ended")

    checks.add("pdca", check, worst="degraded")


def add_bus_check(checks: ReadinessChecks, problem: Callable[[], str | None]) -> None:
    """Whether the journal reaches the message broker; orders do not wait for it."""

    async def check() -> Check:
        found = problem()
        return Check("bus", "ok", "events are published") if found is None else Check("bus", "degraded", found)

    checks.add("bus", check)


async def _check_process(core: Core) -> Check:
    if core.supervisor.stop.is_set():
        return Check("process", "failed", "it is stopping")
    if core.lease is not None and core.lease.lost_to is not None:
        return Check("process", "degraded", f"a copy of this database is running: {core.lease.lost_to}")
    if core.kills.automatic_count >= AUTOMATIC_KILLS_MAX:
        detail = (
            f"programs have set {AUTOMATIC_KILLS_MAX} kills, the maximum, and can stop no further strategy: clear some"
        )
        return Check("process", "degraded", detail)
    return Check("process", "ok", "it accepts requests")


async def _check_worker(core: Core, *, sends: bool) -> Check:
    if sends:
        lanes = 0 if core.lanes is None else len(core.lanes.usable())
        if not lanes:
            return Check("worker", "degraded", "it owns no lane: other workers have them, or the database is away")
        return Check("worker", "ok", f"it sends on {lanes} lanes")
    if core.settings.database_url is None:
        return Check("worker", "degraded", "nothing is sent: SWITCHYARD_WORKER is false")
    if all(core.health.record(venue) is None for venue in core.settings.venue_names):
        return Check("worker", "degraded", "no worker has reported for 20 s: accepted orders wait")
    return Check("worker", "ok", "a worker reports on the venues")


async def _check_cache(core: Core, caches: Caches) -> Check:
    if caches.cache is None:
        return Check("cache", "ok", "none is configured")
    if core.settings.idempotency.cache.redis_url is None:
        return Check("cache", "ok", "in memory")
    if not (await caches.cache.stats()).is_reachable:
        return Check("cache", "degraded", "Redis does not answer: the database answers instead")
    return Check("cache", "ok", "Redis answers")


Role = Literal["up", "gateway", "worker"]

# The SQLite writer thread works in short bursts; with Python's default of 5 ms the event loop would mostly wait for it.
SWITCH_SECONDS = 0.0005
# Open files beside the HTTP connections: files, connections to databases and venues.
OTHER_FILES = 2_000
# Nearly all objects are freed by reference counting. With the default of 700 the collector took a tenth of a worker's
# time; at this threshold a pause stays around a millisecond.
GARBAGE_THRESHOLDS = (20_000, 20, 20)


class Office(Protocol):
    """The back office of `up`, which is a child process."""

    @property
    def problem(self) -> str | None:
        """Why it does not run, if it does not."""

    @property
    def url(self) -> str | None:
        """Where it listens; None until it does."""

    def run_recheck(self, request_id: str) -> None:
        """Carry out a stored recheck, in the background."""


class Engine:
    """The stages of one process, and the parts of them that entry points use."""

    services: Services
    """Set while a gateway runs, as is `caches`; a worker has neither."""
    caches: Caches
    pdca: PdcaOffice
    """Set while a gateway runs."""
    office: Office | None = None
    """Set while the back office runs as a child process."""
    relay: Relay | None = None
    """Set while a process publishes to Kafka, or stands by to do so."""

    def __init__(self, settings: Settings, role: Role, database: Database, wrappers: PortWrappers) -> None:
        core = self._core = Core(settings, database, wrappers, role)
        core.choice = VenueChoice(
            core.router,
            core.quotes,
            catalogue=core.catalogue,
            health=core.health,
            fees_percent={venue.name: venue.fee_percent for venue in settings.venues},
            taken=taken_orders(settings),
            id_forms=venue_id_forms(settings),
        )
        self._role = role
        self._rechecks: Rechecks | None = None
        self._database = database
        self.settings = settings
        self.queries = database.queries
        self.keys = database.keys
        self.metrics = core.metrics
        self.wall_clock = core.wall_clock
        self.clock = core.clock
        self.randomness = core.randomness
        self.sequencer = core.sequencer
        self.quotes = core.quotes
        self.catalogue = core.catalogue
        self.tracer = core.tracer
        self.hub = StreamHub(
            database.journal,
            database.queries,
            buffer_size=settings.sse_buffer_size,
            queue_capacity=settings.sse_queue_capacity,
            metrics=core.metrics,
        )
        self.kill_switch = core.kill_switch
        self.window = core.window
        self.observer = Gauges(
            journal=database.journal,
            queries=database.queries,
            sequencer=core.sequencer,
            clock=core.clock,
            wall_clock=core.wall_clock,
            disks=core.disks,
            metrics=core.metrics,
        )
        self.observer.clock_offsets = partial(clock_offsets, core)
        self.sends = role == "worker" or (role == "up" and settings.worker)
        """Whether this process sends orders to the venues."""
        self.readiness = process_checks(core, sends=self.sends)

    @property
    def stop(self) -> asyncio.Event:
        """Set when the process is to end."""
        return self._core.supervisor.stop

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the process, if one did."""
        return self._core.supervisor.failure

    def venue_problems(self) -> list[VenueProblem]:
        """The venues that this process does not send to or does not hear, and why."""
        problems = (gate.problem for gate in self._core.gates.values())
        return [problem for problem in problems if problem is not None]

    def bus_problem(self) -> str | None:
        """Why this process publishes nothing to Kafka, if it should."""
        return None if self.relay is None else self.relay.halted or self.relay.trouble

    def venue_states(self, detailed: bool = True) -> list[VenueState]:
        """Every venue: whether orders are sent to it, and how it answers; `detailed`: as operators may see it."""
        return venue_states(self._core, detailed)

    @property
    def sends_to(self) -> tuple[VenueName, ...]:
        """The venues that this process sends to."""
        return tuple(self._core.venues) if self.sends else ()

    async def doubt_of(self, order_id: OrderId) -> str | None:
        """How the doubt about an order ends, as the worker of its venue says; None if there is no doubt."""
        state = (await self._database.journal.load([order_id])).get(order_id)
        if state is None:
            return None
        venue = state.order.venue
        mark = await self._database.journal.cursor(declared_name(venue))
        is_running = venue in self.sends_to or self._core.health.record(venue) is not None
        settling = settling_in(None if mark is None else mark.hash)
        return standing(state.outbox, Decider(settling=settling, is_running=is_running))

    async def end_doubt(self, row_id: str, decision: DecisionFact) -> Order:
        """Record an operator's decision about an uncertain row while the stages run."""

        async def decides(venue: VenueName) -> bool:
            return lookup_decides(self.settings, venue)

        return await end_doubt(
            self._database.journal,
            self._database.queries,
            self.sequencer.offer,
            self.clock,
            row_id=row_id,
            decision=decision,
            lookup_decides=decides,
        )

    def run_recheck(self, request_id: str) -> None:
        """Carry out a stored recheck in the background, as the command of another runner asks."""
        if self.office is not None:
            self.office.run_recheck(request_id)
        elif self._rechecks is not None:
            self._rechecks.want(request_id)
        else:
            raise SwitchyardError("this process keeps no books and rechecks nothing")

    def books_problem(self) -> str | None:
        """Why the back office of this process does not run, if it should."""
        return None if self.office is None else self.office.problem

    @property
    def commits(self) -> Wake:
        """Notified after commits, for the back office."""
        return self._core.wakes.books

    def start_stage(self, stack: AsyncExitStack, stage: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run one more stage until the stack unwinds; it is restarted if it fails."""
        self._core.supervisor.start(stack, stage, run)

    def on_held_wal(self, callback: Callable[[], None]) -> None:
        """Call back while a reader keeps the journal's WAL from being restarted."""
        self._database.on_held_wal(callback)

    def _start_rechecks(self, stack: AsyncExitStack) -> None:
        core, pdca = self._core, self.pdca
        pdca.runner = self.settings.rechecks.runner
        pdca.submit = start_dispatch(
            self.settings,
            pdca.store,
            clock=core.clock,
            metrics=core.metrics,
            tracer=core.tracer,
            supervisor=core.supervisor,
            wake=pdca.rechecks,
            stack=stack,
        )
        if self._role == "up" and self.settings.database_url is None and not self.settings.backoffice:
            self._rechecks = start_rechecks_without_books(core, pdca, stack)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the stages in the order in which they depend on each other; stop them in reverse."""
        core = self._core
        async with AsyncExitStack() as stack:
            await core.start(stack)
            await start_lease(core, stack)
            # The head and audit readers come before the venues: an older database must be detected before it sends.
            await start_head(core, stack)
            if self._role != "worker":
                self.observer.audit_seq = await start_audit(core, stack)
                start_streams(core, self.hub, stack)
                self.services, self.caches = await start_gateway(core, self.hub, stack)
                self.observer.cache = self.caches.cache
                add_cache_check(self.readiness, core, self.caches)
                self.pdca = await start_pdca(core, stack)
                self.observer.rechecks = self.pdca.store.tally
                add_pdca_check(self.readiness, self.pdca)
                self._start_rechecks(stack)
            if self._role != "gateway":
                self.relay = start_relay(core, stack)
                if self.relay is not None:
                    add_bus_check(self.readiness, self.bus_problem)
            open_credentials(core, stack)
            await open_quotes(core, stack, polls_catalogue=self._role != "worker")
            if self.sends:
                await open_venues(core, stack)
                await start_worker(core, stack)
            elif self.settings.database_url is not None:
                reader = HealthReader(core.health, self.settings.venue_names, self._database.journal, core.clock)
                core.supervisor.start(stack, "venue health", reader.run)
            self._database.listen(core.wakes.notify)
            yield


@asynccontextmanager
async def running_engine(settings: Settings, role: Role, wrappers: PortWrappers | None = None) -> AsyncIterator[Engine]:
    """Run a process's engine on the configured database."""
    if role != "up" and settings.database_url is None:
        raise SettingError(
            "SWITCHYARD_DATABASE_URL",
            f"`switchyard {role}` needs PostgreSQL, because SQLite serves one process: "
            "set it to postgresql://…, or run `switchyard up`",
        )
    if settings.kafka is not None:
        from switchyard.adapters.kafka.configuration import check_properties

        check_properties(settings.kafka)
    if role != "up":  # `up` has prepared it before it created the database
        prepare_data_folder(settings.data_dir)
    if settings.kafka is not None and role != "gateway":
        bus_keys(settings)  # a missing key stops the start before anything is opened
    sys.setswitchinterval(SWITCH_SECONDS)
    _raise_open_files_limit(settings.connections_max + OTHER_FILES)
    wrappers = wrappers or PortWrappers()
    database = wrappers.database(await open_database(settings))
    try:
        engine = Engine(settings, role, database, wrappers)
        async with engine.running():
            # Objects that exist now live as long as the process: exclude them from collections.
            gc.collect()
            gc.freeze()
            gc.set_threshold(*GARBAGE_THRESHOLDS)
            yield engine
    finally:
        await database.close()


def _raise_open_files_limit(wanted: int) -> None:
    """Raise the soft limit of open files as far as the machine allows; many systems default to 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
