"""What every role of a process has: settings, database, clock, sequencer, metrics, tracer, and the supervisor of its
stages.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from switchyard.adapters.files.durable import LocalDisks
from switchyard.adapters.system_clock import SystemClock, SystemRandomness, boot_id
from switchyard.bootstrap.databases import Database
from switchyard.domain.errors import CannotStart, JournalBroken, OutcomeUnknown, Unavailable
from switchyard.domain.ids import AccountId, Installation, KillId, VenueName
from switchyard.domain.journal.changes import Change
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.market.routing import Router
from switchyard.domain.risk.kills import REPEATED_EXECUTIONS, SENT_IDS, Kill
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.clock import DatabaseClock, Wake
from switchyard.flow.commit.sequencer import Sequencer
from switchyard.flow.executions.record import InlineReports
from switchyard.flow.executions.strays import VenueGate
from switchyard.flow.health.venues import HealthBoard, VenueChoice
from switchyard.flow.history.restore import check_not_restoring
from switchyard.flow.kill.switch import KillRequest, KillSwitch
from switchyard.flow.quotes import QuoteBoard
from switchyard.flow.readers.head import InstallationLease
from switchyard.flow.results import OrderResults
from switchyard.flow.routing.window import AdmissionWindow, Forecast
from switchyard.flow.sending.lanes import HeldLanes, WaitingLanes
from switchyard.flow.traced import CommitSpans
from switchyard.ports.clock import Clock, boot_seconds
from switchyard.ports.venue import Venue
from switchyard.settings import Settings
from switchyard.telemetry.metrics import Metrics
from switchyard.venue.bridge import Bridge
from switchyard.venue.credentials import Credential

if TYPE_CHECKING:
    from switchyard.adapters.otlp.tracer import OtlpTracer


log = structlog.get_logger()

# The pause before a failed stage starts again; its work waits in rows, so nothing is lost meanwhile.
RESTART_SECONDS = 1.0


class Supervisor:
    """Starts stages; `stop` is set when the process is to end, and `failure` says why if it was an error."""

    def __init__(self, metrics: Metrics) -> None:
        self.stop = asyncio.Event()
        self.failure: BaseException | None = None
        self._metrics = metrics

    def start(self, stack: AsyncExitStack, stage: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run the stage in a task that is cancelled and awaited when the stack unwinds."""
        self._metrics.stage_failures.labels(stage)  # an alert needs to see the first increase from 0
        task = asyncio.create_task(self._supervise(stage, run), name=stage)
        stack.push_async_callback(_cancel, task)

    def report_broken_journal(self, error: str) -> None:
        """Stop the process: after a failed commit on the disk, nothing that it writes can be trusted."""
        log.critical("journal_broken", error=error)
        self._fail(CannotStart(f"the journal is broken: {error}"))

    async def _supervise(self, stage: str, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await run()
                return
            except CannotStart as error:
                self._fail(error)
                return
            except JournalBroken as error:
                self.report_broken_journal(str(error))
                return
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("stage_waits_for_journal", stage=stage, error=str(error), retry_seconds=RESTART_SECONDS)
            except Exception:
                self._metrics.stage_failures.labels(stage).inc()
                log.exception("stage_failed", stage=stage, retry_seconds=RESTART_SECONDS)
            await asyncio.sleep(RESTART_SECONDS)

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.stop.set()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    # Not `await task`: the caller could not tell the task's cancellation from its own, which must not be lost.
    await asyncio.gather(task, return_exceptions=True)


class PortWrappers:
    """Returns each port unchanged; crash tests override a method to stop a process at a boundary or plant a defect."""

    def database(self, database: Database) -> Database:
        """The database that all stages use."""
        return database

    def venue(self, venue: Venue) -> Venue:
        """A venue that the worker sends to; called once for each."""
        return venue

    def clock(self, clock: Clock) -> Clock:
        """The wall clock."""
        return clock


def new_tracer(settings: Settings, role: str, metrics: Metrics) -> "OtlpTracer | None":
    """The tracer of a process, not started yet; none where traces are off."""
    if settings.tracing is None:
        return None
    from switchyard.adapters.otlp.tracer import OtlpTracer

    return OtlpTracer(settings.tracing, role, metrics.traces)


def start_tracer(tracer: "OtlpTracer | None", stack: AsyncExitStack) -> None:
    """Export spans until the stack unwinds, then what is left, for a limited time."""
    if tracer is not None:
        tracer.start()
        stack.push_async_callback(tracer.close)


def open_tracer(settings: Settings, role: str, metrics: Metrics, stack: AsyncExitStack) -> "OtlpTracer | None":
    """The tracer of a process that is not an engine."""
    tracer = new_tracer(settings, role, metrics)
    start_tracer(tracer, stack)
    return tracer


# Longer than a broker's slowest answer (5 s); rows that are still open after it are recovered at the next start.
DRAIN_SECONDS = 6.0


class Wakes:
    """The stages to notify after a commit."""

    def __init__(self) -> None:
        self.dispatch = Wake()
        self.audit = Wake()
        self.stream = Wake()
        self.fills = Wake()
        self.books = Wake()
        self.relay = Wake()
        self.all = (self.dispatch, self.audit, self.stream, self.fills, self.books, self.relay)

    def notify(self) -> None:
        """Notify all stages: another process has committed."""
        for wake in self.all:
            wake.notify()


def folders_of(settings: Settings) -> dict[str, Path]:
    """The folders in which a process writes, by what they hold."""
    return {"data": settings.data_dir, "state": settings.state_dir, "audit": settings.audit_path.parent}


class Core:
    """What the stages of one process are wired with."""

    installation: Installation
    """Read by `start`."""
    choice: VenueChoice
    """Set by `Engine`."""

    def __init__(self, settings: Settings, database: Database, wrappers: PortWrappers, role: str) -> None:
        self.settings = settings
        self.database = database
        self.metrics = Metrics()
        self.metrics.process.describe(role)
        self.tracer = new_tracer(settings, role, self.metrics)
        """None where traces are off."""
        self.supervisor = Supervisor(self.metrics)
        self.wrappers = wrappers
        self.wall_clock = wrappers.clock(SystemClock())
        """For times that people and other systems compare with their own, such as those in tokens."""
        self.clock = DatabaseClock(database.time, self.wall_clock, self.metrics, ticks=boot_seconds, boot_id=boot_id())
        self.disks = LocalDisks(folders_of(settings))
        self.randomness = SystemRandomness()
        self.wakes = Wakes()
        self.catalogue = Catalogue(settings.instruments, allows_unlisted=settings.unlisted_symbols == "allow")
        self.venues: dict[VenueName, Venue] = {}
        """Filled by `open_venues`, after the stages that hold this mapping were created."""
        self.exclusive: dict[VenueName, Bridge] = {}
        """Those of them that admit one session: started by the worker that holds it."""
        self.quotes = QuoteBoard(self.clock, self.metrics, age_max=settings.quote_age_max)
        """Gets its sources from `open_quotes`."""
        self.health = HealthBoard()
        """Gets its breakers from `start_worker`."""
        self.router = Router(settings.default_route, settings.symbol_routes, settings.account_routes)
        self.credentials: dict[VenueName, Credential] = {}
        """Of the venues outside of this process; filled by `open_credentials`."""
        self.gates: dict[VenueName, VenueGate] = {}
        self.lease: InstallationLease | None = None
        """Where Redis is configured."""
        self.lanes: HeldLanes | None = None
        """Of a worker in this process."""
        self.inline_reports: dict[VenueName, InlineReports] = {}
        """Of the venues that a worker in this process sends to."""
        results = OrderResults(queries=database.queries, catalogue=self.catalogue, metrics=self.metrics)
        self.forecast = Forecast(database.queries, settings.venue_names, self.clock, self.health.held)
        self.window = AdmissionWindow(self.forecast, settings.venue_names, self.clock, self.metrics)
        self.kills = ActiveKills(database.kills, self.metrics)
        self.waiting = WaitingLanes(self.wakes.dispatch)
        notes: list[Callable[[Sequence[Change]], None]] = [
            results.count,
            self.window.note,
            self.waiting.note,
            self.kills.note_changes,
        ]
        if self.tracer is not None:
            notes.append(CommitSpans(self.tracer, lambda order_id: self.sequencer.states.order(order_id)).note)
        self.sequencer = Sequencer(
            database.journal,
            clock=self.clock,
            randomness=self.randomness,
            metrics=self.metrics,
            wakes=[self.wakes.audit, self.wakes.stream, self.wakes.fills, self.wakes.books, self.wakes.relay],
            capacity=settings.queue_capacity,
            on_broken=self.supervisor.report_broken_journal,
            completion=results,
            on_committed=notes,
        )
        self.kill_switch = KillSwitch(
            journal=database.journal,
            kills=database.kills,
            commit=self.sequencer.commit,
            clock=self.clock,
            randomness=self.randomness,
            venues=settings.venue_names,
        )

    async def stop_everything(self, reason: str) -> None:
        """Set a kill of everything in the name of the watcher of sent ids."""
        await self.kill_switch.set_by_program(KillRequest(everything=True, by=SENT_IDS, reason=reason))

    async def suspend_strategy(self, account: AccountId, strategy: str, reason: str, kill_id: KillId) -> Kill:
        """Set a kill of an account's strategy in the name of the repeated-execution throttle."""
        request = KillRequest(account=account, strategy=strategy, by=REPEATED_EXECUTIONS, reason=reason)
        return await self.kill_switch.set_by_program(request, new_id=kill_id)

    async def start(self, stack: AsyncExitStack) -> None:
        """Start the clock and the sequencer, which all other stages need; both stop last, before the traces."""
        start_tracer(self.tracer, stack)
        journal = self.database.journal
        # The head first: if `db restored` opens an epoch after this line, every append of this process is rejected.
        await journal.head(0)
        await check_not_restoring(journal)
        self.installation = await journal.installation()
        await self.clock.start()
        self.supervisor.start(stack, "clock", self.clock.run)
        self.supervisor.start(stack, "sequencer", self.sequencer.run)
        await self.kills.refresh()
        self.supervisor.start(stack, "kills", self.kills.run)
        stack.push_async_callback(self.sequencer.drain, DRAIN_SECONDS)
