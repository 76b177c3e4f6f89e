"""The stages of one process, put together and run."""

import asyncio
import contextlib
import gc
import resource
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Literal

import structlog

from switchyard.adapters.system_clock import SystemClock, SystemRandomness
from switchyard.bootstrap.caches import Caches, open_caches
from switchyard.bootstrap.databases import Database, head_path, open_database
from switchyard.bootstrap.desks import Desks
from switchyard.bootstrap.venues import KnownQuotes, open_venue
from switchyard.bootstrap.wrappers import PortWrappers
from switchyard.domain.errors import CannotStart, JournalBroken, OutcomeUnknown, SettingError, Unavailable
from switchyard.domain.events import Verdict
from switchyard.domain.ids import VenueName, WorkerId
from switchyard.domain.instruments import Catalogue
from switchyard.domain.orders import Order
from switchyard.flow.clock import DatabaseClock
from switchyard.flow.executions.record import Recorder
from switchyard.flow.executions.sweep import Sweeper
from switchyard.flow.executions.sync import VenueSync
from switchyard.flow.gauges import Gauges
from switchyard.flow.history.restore import incarnation_of
from switchyard.flow.intake.reap import Reaper
from switchyard.flow.readers.audit import AuditWriter
from switchyard.flow.readers.head import HeadKeeper
from switchyard.flow.readers.stream import StreamHub
from switchyard.flow.sending.dispatch import Dispatcher
from switchyard.flow.sending.lanes import HeldLanes
from switchyard.flow.sending.operator import end_doubt
from switchyard.flow.sending.resolve import Resolver
from switchyard.flow.sequencer import Sequencer
from switchyard.flow.wake import Wake
from switchyard.ports.randomness import fresh_ulid
from switchyard.ports.venue import Venue
from switchyard.settings import Settings, journal_key
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

Role = Literal["up", "gateway", "worker"]

# The writer's thread works in short bursts; at the default of 5 ms the event loop would wait for most of its time.
SWITCH_SECONDS = 0.0005
# Long enough for a broker's slowest answer (5 s); what is still open then is settled by the next start.
DRAIN_SECONDS = 6.0
# The connections that the HTTP server takes, and some for files and databases.
FILES_WANTED = 12_000
# Nearly everything dies by its reference count. Looked through every 700 objects, the default, the living ones cost a
# tenth of a worker's time; this often, a pause stays around a millisecond.
GARBAGE_THRESHOLDS = (20_000, 20, 20)
# A failing stage is tried again at this pace: its work waits in rows, so nothing is lost meanwhile.
STAGE_REST_SECONDS = 1.0


class Engine:
    """The stages of one process, running."""

    def __init__(self, settings: Settings, role: Role, database: Database, wrappers: PortWrappers) -> None:
        self.settings = settings
        self.queries = database.queries
        self.keys = database.keys
        self.wall_clock = wrappers.clock(SystemClock())
        """For what people and other systems date, such as tokens."""
        self.clock = DatabaseClock(self.keys, self.wall_clock)
        self.metrics = Metrics()
        self.stop = asyncio.Event()
        self.failure: BaseException | None = None
        self._role = role
        self._database = database
        self._wrappers = wrappers
        self._randomness = SystemRandomness()
        self._tasks: list[asyncio.Task[None]] = []
        self._wakes = {name: Wake() for name in ("dispatch", "audit", "stream")}
        self.sequencer = Sequencer(
            database.journal,
            clock=self.clock,
            randomness=self._randomness,
            metrics=self.metrics,
            wakes=list(self._wakes.values()),
            capacity=settings.queue_capacity,
            on_broken=self._on_broken,
        )
        self.catalogue = Catalogue(settings.instruments)
        self.venues: dict[VenueName, Venue] = {}
        self.desks: Desks
        self.caches: Caches
        self.hub = StreamHub(
            database.journal,
            database.queries,
            buffer_size=settings.sse_buffer_size,
            queue_capacity=settings.sse_queue_capacity,
            metrics=self.metrics,
        )
        self.observer = Gauges(
            queries=database.queries, sequencer=self.sequencer, clock=self.clock, metrics=self.metrics
        )

    async def end_doubt(self, row_id: str, verdict: Verdict, by: str, reason: str) -> Order:
        """Record a person's decision while everything goes on."""
        journal, commit = self._database.journal, self.sequencer.offer
        return await end_doubt(journal, commit, self.clock, row_id=row_id, verdict=verdict, by=by, reason=reason)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the stages in the order in which they depend on each other; stop them the other way round."""
        async with AsyncExitStack() as stack:
            await self.clock.look()
            self._spawn("clock", self.clock.run)
            stack.push_async_callback(self._cancel, "clock")
            self._spawn("sequencer", self.sequencer.run)
            stack.push_async_callback(self._cancel, "sequencer")
            stack.push_async_callback(self.sequencer.drain, DRAIN_SECONDS)
            if self._role == "worker":
                await self._start_head(stack)
            else:
                await self._start_readers(stack)
                await self._start_desks(stack)
            await self._start_venues(stack)
            if self._role == "worker" or (self._role == "up" and self.settings.worker):
                self._start_worker(stack)
            self._database.listen(self._notify)
            yield

    async def _start_head(self, stack: AsyncExitStack) -> None:
        """Before any venue: an older database must be noticed before it sends anything."""
        keeper = HeadKeeper(
            head_path(self.settings),
            key=journal_key(self.settings),
            journal=self._database.journal,
            clock=self.clock,
            metrics=self.metrics,
        )
        await keeper.open()
        stack.push_async_callback(keeper.close)
        self._spawn("head", keeper.run)
        stack.push_async_callback(self._cancel, "head")

    async def _start_readers(self, stack: AsyncExitStack) -> None:
        audit = AuditWriter(
            self.settings.audit_path,
            key=journal_key(self.settings),
            journal=self._database.journal,
            commit=self.sequencer.commit,
            clock=self.clock,
            metrics=self.metrics,
            # Gateways on one database may write files of their own; each is a reader of its own.
            reader=f"audit:{socket.gethostname()}:{self.settings.audit_path.absolute()}",
        )
        await audit.open()
        stack.push_async_callback(audit.close)
        self._spawn("audit", lambda: audit.run(self._wakes["audit"]))
        stack.push_async_callback(self._cancel, "audit")
        self._spawn("stream", lambda: self.hub.run(self._wakes["stream"]))
        stack.push_async_callback(self._cancel, "stream")
        stack.callback(self.hub.close)

    async def _start_desks(self, stack: AsyncExitStack) -> None:
        life = await incarnation_of(self._database.journal)
        self.caches = open_caches(self.settings, life, self.clock, self.metrics, stack)
        self.desks = Desks(
            self.settings,
            self._database,
            caches=self.caches,
            sequencer=self.sequencer,
            hub=self.hub,
            catalogue=self.catalogue,
            quotes=KnownQuotes(self.venues),
            clock=self.clock,
            randomness=self._randomness,
            metrics=self.metrics,
        )
        stages = {
            "forecast": self.desks.forecast.run,
            "reap": Reaper(self.keys, self.clock, self.metrics).run,
        }
        if self.caches.cache is not None:
            stages["cache"] = self.caches.cache.run
        for stage, run in stages.items():
            self._spawn(stage, run)
            stack.push_async_callback(self._cancel, stage)

    async def _start_venues(self, stack: AsyncExitStack) -> None:
        for venue in self.settings.venues:
            # What speaks no HTTP lives in the worker's process; a broker's market can be asked for from here too.
            if self._role != "gateway" or venue.url.startswith("http"):
                self.venues[venue.name] = self._wrappers.venue(
                    await open_venue(venue, self.settings.data_dir, self.catalogue, self.clock, stack)
                )

    def _start_worker(self, stack: AsyncExitStack) -> None:
        resolver = Resolver(
            journal=self._database.journal,
            queries=self._database.queries,
            liveness=self._database.liveness,
            commit=self.sequencer.commit,
            venues=self.venues,
            clock=self.clock,
            metrics=self.metrics,
        )
        self._spawn("resolve", resolver.run)
        stack.push_async_callback(self._cancel, "resolve")
        worker = WorkerId("wrk_" + fresh_ulid(self.clock, self._randomness))
        lanes = HeldLanes(self._database.lanes, worker, self.clock)
        dispatcher = Dispatcher(
            worker=worker,
            journal=self._database.journal,
            queries=self._database.queries,
            liveness=self._database.liveness,
            lanes=lanes,
            commit=self.sequencer.commit,
            venues=self.venues,
            clock=self.clock,
            randomness=self._randomness,
            metrics=self.metrics,
            batch_size=self.settings.outbox_batch_size,
            parallelism=self.settings.outbox_parallelism,
            retry_max=self.settings.outbox_retry_max,
            idle_seconds=self.settings.outbox_idle_sleep_ms / 1000,
            stuck_after=self.settings.outbox_stuck_after,
        )
        stack.push_async_callback(dispatcher.drain, DRAIN_SECONDS)
        self._spawn("lanes", lanes.run)
        stack.push_async_callback(self._cancel, "lanes")
        self._spawn("dispatch", lambda: dispatcher.run(self._wakes["dispatch"]))
        stack.push_async_callback(self._cancel, "dispatch")
        for venue in self.venues.values():
            self._spawn(f"venue {venue.name}", partial(self._follow, venue, dispatcher))
            stack.push_async_callback(self._cancel, f"venue {venue.name}")

    async def _follow(self, venue: Venue, dispatcher: Dispatcher) -> None:
        """Hear what the venue has, let it be sent to, then record what it reports."""
        recorder = Recorder(
            venue,
            journal=self._database.journal,
            queries=self._database.queries,
            commit=self.sequencer.commit,
            clock=self.clock,
            metrics=self.metrics,
        )
        await VenueSync(venue, recorder, journal=self._database.journal, metrics=self.metrics).run()
        dispatcher.open_venue(venue.name)
        self._wakes["dispatch"].notify()
        async with self._sweeping(venue, recorder):
            await recorder.run()

    @asynccontextmanager
    async def _sweeping(self, venue: Venue, recorder: Recorder) -> AsyncIterator[None]:
        """Meanwhile ask the venue for what its reports may have left out, where it can be asked."""
        [interval] = [one.sweep for one in self.settings.venues if one.name == venue.name]
        if not interval or venue.capabilities.lookup == "none":
            yield
            return
        sweeper = Sweeper(
            venue,
            recorder,
            journal=self._database.journal,
            queries=self._database.queries,
            clock=self.clock,
            metrics=self.metrics,
            interval=interval,
        )
        sweeping = asyncio.create_task(self._supervised(f"sweep {venue.name}", sweeper.run))
        try:
            yield
        finally:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)

    def _notify(self) -> None:
        for wake in self._wakes.values():
            wake.notify()

    def _spawn(self, stage: str, run: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(self._supervised(stage, run), name=stage))

    async def _supervised(self, stage: str, run: Callable[[], Awaitable[None]]) -> None:
        """Keep a stage going: its work waits in rows, so trying again loses nothing."""
        while True:
            try:
                await run()
                return
            except CannotStart as error:
                self._fail(error)
                return
            except JournalBroken as error:
                self._on_broken(str(error))
                return
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("a stage waits for the journal", stage=stage, error=str(error))
            except Exception:
                self.metrics.stage_failures.labels(stage).inc()
                log.exception("a stage failed and starts anew", stage=stage)
            await asyncio.sleep(STAGE_REST_SECONDS)

    async def _cancel(self, stage: str) -> None:
        for task in self._tasks:
            if task.get_name() == stage:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def _on_broken(self, error: str) -> None:
        log.critical("the journal is broken; the process ends", error=error)
        self._fail(CannotStart(f"the journal is broken: {error}"))

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.stop.set()


def _raise_file_limit() -> None:
    """Ask for as many connections as the machine allows; many systems begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@asynccontextmanager
async def running_engine(settings: Settings, role: Role, wrappers: PortWrappers | None = None) -> AsyncIterator[Engine]:
    """A process's engine on its database, from first to last."""
    if role != "up" and settings.database_url is None:
        raise SettingError(
            "SWITCHYARD_DATABASE_URL",
            f"`switchyard {role}` needs PostgreSQL, because SQLite serves one process: "
            "set it to postgresql://…, or run `switchyard up`",
        )
    sys.setswitchinterval(SWITCH_SECONDS)
    _raise_file_limit()
    wrappers = wrappers or PortWrappers()
    database = wrappers.database(await open_database(settings))
    try:
        engine = Engine(settings, role, database, wrappers)
        async with engine.running():
            # What lives now lives for good: the collector need not look at it again and again.
            gc.collect()
            gc.freeze()
            gc.set_threshold(*GARBAGE_THRESHOLDS)
            yield engine
    finally:
        await database.close()
