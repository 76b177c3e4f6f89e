"""The back office: its ledger and its consumer, beside the stages of `up` or as a process of its own."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from switchyard.adapters.files.disks import LocalDisks
from switchyard.adapters.files.private import prepare_data_folder
from switchyard.adapters.system_clock import SystemClock
from switchyard.bootstrap.books import OpenBooks, journal_turn, open_books
from switchyard.bootstrap.core import Core
from switchyard.bootstrap.databases import open_database
from switchyard.bootstrap.rechecks import start_office_rechecks
from switchyard.bootstrap.reconcile import add_reconcile_check, open_statements, start_reconciler
from switchyard.bootstrap.supervisor import Supervisor
from switchyard.bootstrap.tracing import open_tracer
from switchyard.domain.errors import CannotStart, SettingError
from switchyard.domain.readiness import Check
from switchyard.flow.backoffice.consumer import Consumer
from switchyard.flow.backoffice.journal_bus import JournalBus
from switchyard.flow.backoffice.unrealised import Marks
from switchyard.flow.gauges import show_disks, show_journal
from switchyard.flow.health.readiness import ReadinessChecks, check_disks, check_journal
from switchyard.flow.reconcile.desk import ReconcileDesk
from switchyard.flow.traced import EventTraces
from switchyard.flow.wake import Wake
from switchyard.ports.bus import Bus
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.tracing import Tracer
from switchyard.settings import Settings, bus_keys
from switchyard.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from switchyard.adapters.kafka.bus import KafkaBus


class BackOffice:
    """The parts of the back office that its API uses."""

    kafka_bus: "KafkaBus | None" = None
    """Set where the events are read from Kafka."""
    reconcile: ReconcileDesk
    """Set once the venues that it compares with are open."""

    def __init__(
        self,
        books: OpenBooks,
        consumer: Consumer,
        metrics: Metrics,
        clock: Clock,
        marks: Marks | None = None,
        posting_clock: Clock | None = None,
    ) -> None:
        self.books = books
        self.ledger = books.ledger
        self.reports = books.reports
        self.marks = marks or Marks()
        self.consumer = consumer
        self.metrics = metrics
        self.clock = clock
        """Wall time, for tokens."""
        self.posting_clock = posting_clock or clock
        """For entries of people: the time of the journal's events, where this process writes them."""
        self.readiness = ReadinessChecks(clock)
        self.readiness.add("books", self.check)

    @property
    def is_behind(self) -> bool:
        """Whether events are known, or must be feared, that happened and are not booked."""
        consumer, bus = self.consumer, self.kafka_bus
        has_stopped = consumer.problem is not None or consumer.trouble is not None
        return has_stopped or consumer.lag > 0 or (bus is not None and bus.trouble is not None)

    async def observe(self) -> None:
        """Refresh the gauges that are computed when `/metrics` is read; in `up` the gateway does that."""

    async def check(self) -> Check:
        """Whether the books follow the bus."""
        problem = self.consumer.problem
        if problem is not None:
            return Check("books", "failed", f"they have stopped: {problem}")
        await self.ledger.sources()  # raises Unavailable: nothing is booked and nothing can be read
        if self.consumer.trouble is not None:
            return Check("books", "degraded", f"nothing can be booked at the moment: {self.consumer.trouble}")
        return Check("books", "ok", f"booked up to event {self.consumer.last_offset or 0}")


class BackOfficeProcess(BackOffice):
    """A back office that is a process of its own."""

    def __init__(
        self,
        books: OpenBooks,
        consumer: Consumer,
        metrics: Metrics,
        clock: Clock,
        supervisor: Supervisor,
        folder: Path,
        journal: Journal,
    ) -> None:
        super().__init__(books, consumer, metrics, clock)
        self.stop = supervisor.stop
        self._supervisor = supervisor
        self._disks = LocalDisks({"data": folder})
        self._journal = journal
        # It writes nothing there, and what is booked can be read while the journal is away.
        self.readiness.add("journal", partial(check_journal, journal, lambda: None), worst="degraded")
        self.readiness.add("disk", partial(check_disks, self._disks))

    async def observe(self) -> None:
        """Refresh the gauges of the disk and of the journal's database."""
        await show_disks(self._disks, self.metrics)
        await show_journal(self._journal, self.metrics)

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the process, if one did."""
        return self._supervisor.failure


async def start_backoffice(core: Core, stack: AsyncExitStack) -> BackOffice:
    """Keep the books in a process that also handles orders; a file that cannot be opened stops the start."""
    books = await stack.enter_async_context(open_books(core.settings))
    consumer = Consumer(
        _journal_bus(core.settings, core.database.journal, core.tracer, stack),
        books.ledger,
        clock=core.clock,
        metrics=core.metrics.backoffice,
        shares=True,
        tracer=core.tracer,
    )
    await consumer.open()
    core.supervisor.start(stack, "books", lambda: consumer.run(core.wakes.books))
    marks = Marks(core.quotes, core.router)
    return BackOffice(books, consumer, core.metrics, core.wall_clock, marks, posting_clock=core.clock)


@asynccontextmanager
async def running_backoffice(settings: Settings) -> AsyncIterator[BackOfficeProcess]:
    """Run the back office alone, on a journal in PostgreSQL; it reads the events from Kafka where that is enabled.

    Reconciliation and rechecks read the journal's database in any case.
    """
    if settings.database_url is None:
        raise SettingError(
            "SWITCHYARD_DATABASE_URL",
            "`switchyard backoffice` needs PostgreSQL, because SQLite serves one process: set it to postgresql://…, or "
            "run `switchyard up`, which keeps the books as well",
        )
    prepare_data_folder(settings.data_dir)
    keys = () if settings.kafka is None else bus_keys(settings)
    async with AsyncExitStack() as stack:
        wake, kafka_bus = Wake(), None
        clock, metrics = SystemClock(), Metrics()
        tracer = open_tracer(settings, "backoffice", metrics, stack)
        database = await open_database(settings)
        stack.push_async_callback(database.close)
        books = await stack.enter_async_context(open_books(settings))
        bus: Bus
        if settings.kafka is not None:
            from switchyard.adapters.kafka.messages import MessageReader
            from switchyard.bootstrap.kafka_bus import open_kafka_bus

            reader = MessageReader((await database.journal.installation()).id, keys, metrics.backoffice.rejected)
            bus = kafka_bus = await open_kafka_bus(settings.kafka, reader, books.ledger, wake, stack)
        else:
            bus = _journal_bus(settings, database.journal, tracer, stack)
        consumer = Consumer(bus, books.ledger, clock=clock, metrics=metrics.backoffice, shares=False, tracer=tracer)
        await consumer.open()
        if consumer.source_problem is not None:
            raise CannotStart(consumer.source_problem)
        supervisor = Supervisor(metrics)
        supervisor.start(stack, "books", lambda: consumer.run(wake))
        database.listen(wake.notify)
        metrics.process.describe("backoffice")
        await start_office_rechecks(
            settings,
            database,
            books,
            metrics=metrics,
            tracer=tracer,
            supervisor=supervisor,
            stack=stack,
        )
        office = BackOfficeProcess(books, consumer, metrics, clock, supervisor, settings.data_dir, database.journal)
        office.reconcile = await start_reconciler(
            settings,
            books,
            database,
            venues=await open_statements(settings, clock, stack),
            quotes=None,
            clock=clock,
            metrics=metrics,
            supervisor=supervisor,
            stack=stack,
            shares=False,
        )
        add_reconcile_check(office.reconcile, office.readiness)
        office.kafka_bus = kafka_bus
        yield office


def _journal_bus(settings: Settings, journal: Journal, tracer: Tracer | None, stack: AsyncExitStack) -> JournalBus:
    """The journal as the bus; where the books serve several processes, one at a time reads it."""
    turn = journal_turn(settings)
    if turn is not None:
        stack.push_async_callback(turn.give_up)
    return JournalBus(journal, turn, None if tracer is None else EventTraces(journal))
