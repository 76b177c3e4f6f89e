"""The back office, in a process of its own: the books, their consumer, reconciliation and rechecks."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from switchyard.adapters.backoffice.postgres.breaks import PostgresBreaks
from switchyard.adapters.backoffice.sqlite.breaks import SqliteBreaks
from switchyard.adapters.files.durable import LocalDisks, prepare_data_folder
from switchyard.adapters.system_clock import SystemClock
from switchyard.adapters.venues.paper.store import PaperStatement
from switchyard.bootstrap.books import OpenBooks, books_url, open_books, reader_lock
from switchyard.bootstrap.capabilities import declared_capabilities, is_remote
from switchyard.bootstrap.core import Supervisor, open_tracer
from switchyard.bootstrap.databases import Database, kill_switch_of, open_database, started_clock
from switchyard.bootstrap.pdca import Rechecks, open_pdca_store, recheck_worker, restricting
from switchyard.bootstrap.venues import credential_of, paper_path, remote_venue, watch_secrets
from switchyard.domain.errors import CannotStart, SettingError
from switchyard.domain.ids import AccountId, KillId, VenueName
from switchyard.domain.journal.lines import Offset
from switchyard.domain.market.health import Check
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.market.routing import Router
from switchyard.domain.risk.kills import Kill
from switchyard.flow.backoffice.check import Marks
from switchyard.flow.backoffice.consumer import Consumer
from switchyard.flow.backoffice.source import JournalBus
from switchyard.flow.clock import Wake
from switchyard.flow.health.readiness import ReadinessChecks, check_disks, check_journal, show_disks, show_journal
from switchyard.flow.pdca.recheck import LedgerFills
from switchyard.flow.reconcile.matching import GatewaySide
from switchyard.flow.reconcile.reconciler import Reconciler, check_reconciliation
from switchyard.flow.reconcile.service import ReconcileService
from switchyard.flow.traced import EventTraces
from switchyard.ports.books import Ledger
from switchyard.ports.bus import Bus
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.quotes import QuoteLookup
from switchyard.ports.tracing import Tracer
from switchyard.ports.venue import VenueStatement
from switchyard.settings import KafkaSettings, Settings, bus_keys
from switchyard.telemetry.metrics import Metrics
from switchyard.venue.bridge import SENDS
from switchyard.venue.interface import HasStatement

if TYPE_CHECKING:
    from switchyard.adapters.kafka.bus import KafkaBus
    from switchyard.adapters.kafka.messages import MessageReader


def breaks_path(settings: Settings) -> Path:
    """The file of the breaks; beside the books, because a rebuild replaces those."""
    return settings.data_dir / "breaks.db"


async def start_reconciler(
    settings: Settings,
    books: OpenBooks,
    database: Database,
    *,
    venues: dict[VenueName, VenueStatement | str],
    quotes: QuoteLookup | None,
    clock: Clock,
    metrics: Metrics,
    supervisor: Supervisor,
    stack: AsyncExitStack,
) -> ReconcileService:
    """Open the breaks and compare for as long as the process lives, unless the setting says otherwise."""
    url, ledger = books_url(settings), books.ledger
    breaks = await SqliteBreaks.open(breaks_path(settings)) if url is None else await PostgresBreaks.open(url)
    stack.push_async_callback(breaks.close)
    reconciler: Reconciler | None = None
    if settings.reconcile:
        reconciler = Reconciler(
            dump=books.dump,
            lookup=books.lookup,
            manual=ledger,
            gateway=GatewaySide(
                journal=database.journal,
                queries=database.queries,
                accounts=database.accounts,
                ledger=ledger,
                clock=clock,
            ),
            journal=database.journal,
            queries=database.queries,
            venues=venues,
            breaks=breaks,
            clock=clock,
            metrics=metrics.reconcile,
            quiet=settings.reconcile_quiet,
            interval=settings.reconcile_interval,
        )
        await reconciler.show_counts()
        supervisor.start(stack, "reconcile", reconciler.run)
    return ReconcileService(
        ledger=ledger,
        manual=ledger,
        queries=database.queries,
        breaks=breaks,
        clock=clock,
        catalogue=Catalogue(settings.instruments),
        quotes=quotes,
        venues=settings.venue_names,
        reconciler=reconciler,
    )


def add_reconcile_check(service: ReconcileService, readiness: ReadinessChecks) -> None:
    """Whether the books are compared and agree, where they are compared; orders do not wait for it."""
    if service.reconciler is not None:
        readiness.add("reconcile", partial(check_reconciliation, service.reconciler), worst="degraded")


async def open_statements(
    settings: Settings,
    clock: Clock,
    metrics: Metrics,
    supervisor: Supervisor,
    stack: AsyncExitStack,
    *,
    reads_paper: bool,
) -> dict[VenueName, VenueStatement | str]:
    """The brokers, opened for questions only, or why a venue cannot be asked.

    `reads_paper`: whether the paper exchanges' files are those in this data folder.
    """
    found: dict[VenueName, VenueStatement | str] = {}
    for venue in settings.venues:
        if venue.kind == "paper" and reads_paper:
            path = paper_path(settings, venue.name)
            found[venue.name] = PaperStatement(venue.name, path, declared_capabilities(venue))
            continue
        if not is_remote(venue):
            found[venue.name] = "it has no statement" if reads_paper else "it runs in the process of its worker"
            continue
        credential = credential_of(venue, clock)
        broker = remote_venue(venue, clock, sends=replace(SENDS, spares_min=0), credential=credential)  # it sends none
        if not isinstance(broker.adapter, HasStatement):
            found[venue.name] = "it has no statement"
            continue
        watch_secrets(venue, credential, metrics, supervisor, stack)
        await broker.start()
        stack.push_async_callback(broker.close)
        found[venue.name] = broker
    return found


class Parent(QuoteLookup, Protocol):
    """`switchyard up`, as the back office that it runs as a child process needs it."""

    events: Wake
    """Notified after commits to the journal."""
    rechecks: Wake
    """Notified when a recheck was requested."""

    def on_recheck(self, callback: Callable[[str], None]) -> None:
        """Call back with a recheck that a command wants carried out."""

    async def restrict(self, account: AccountId, strategy: str, reason: str, kill_id: KillId) -> Kill:
        """Make the strategy reduce-only."""


class BackOffice:
    """The parts of the back office that its API uses."""

    kafka_bus: "KafkaBus | None" = None
    """Set where the events are read from Kafka."""
    reconcile: ReconcileService
    """Set once the venues that it compares with are open."""

    def __init__(
        self,
        books: OpenBooks,
        consumer: Consumer,
        metrics: Metrics,
        *,
        supervisor: Supervisor,
        folder: Path,
        database: Database,
        posting_clock: Clock,
        marks: Marks,
    ) -> None:
        self.books = books
        self.ledger = books.ledger
        self.reports = books.reports
        self.marks = marks
        self.consumer = consumer
        self.metrics = metrics
        self.clock = SystemClock()
        """Wall time, for tokens."""
        self.posting_clock = posting_clock
        """For entries of people: the time of the journal's events."""
        self.stop = supervisor.stop
        self._supervisor = supervisor
        self._disks = LocalDisks({"data": folder})
        self._database = database
        self.readiness = ReadinessChecks(self.clock)
        self.readiness.add("books", self.check)
        # It writes nothing there, and what is booked can be read while the journal is away.
        self.readiness.add("journal", partial(check_journal, database.journal, lambda: None), worst="degraded")
        self.readiness.add("disk", partial(check_disks, self._disks))

    @property
    def is_behind(self) -> bool:
        """Whether events are known, or must be feared, that happened and are not booked."""
        consumer, bus = self.consumer, self.kafka_bus
        has_stopped = consumer.problem is not None or consumer.trouble is not None
        return has_stopped or consumer.lag > 0 or (bus is not None and bus.trouble is not None)

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the process, if one did."""
        return self._supervisor.failure

    def longest_read_seconds(self) -> float:
        """How long the oldest read of a SQLite journal has lasted: it keeps that journal's WAL from being restarted."""
        return self._database.longest_read_seconds()

    async def observe(self) -> None:
        """Refresh the gauges of the disk and of the journal's database."""
        await show_disks(self._disks, self.metrics)
        await show_journal(self._database.journal, self.metrics)

    async def check(self) -> Check:
        """Whether the books follow the bus."""
        problem = self.consumer.problem
        if problem is not None:
            return Check("books", "failed", f"they have stopped: {problem}")
        await self.ledger.sources()  # raises Unavailable: nothing is booked and nothing can be read
        if self.consumer.trouble is not None:
            return Check("books", "degraded", f"nothing can be booked at the moment: {self.consumer.trouble}")
        return Check("books", "ok", f"booked up to event {self.consumer.last_offset or 0}")


@asynccontextmanager
async def running_backoffice(settings: Settings, parent: Parent | None = None) -> AsyncIterator[BackOffice]:
    """Run the back office: alone on a journal in PostgreSQL, or as the child process of `up` on either engine.

    Alone, it reads the events from Kafka where that is enabled; reconciliation and rechecks read the journal's database
    in any case.
    """
    if settings.database_url is None and parent is None:
        raise SettingError(
            "SWITCHYARD_DATABASE_URL",
            "`switchyard backoffice` needs PostgreSQL, because SQLite serves one process: set it to postgresql://…, or "
            "run `switchyard up`, which keeps the books as well",
        )
    prepare_data_folder(settings.data_dir)
    keys = () if settings.kafka is None else bus_keys(settings)
    async with AsyncExitStack() as stack:
        wake, kafka_bus = Wake() if parent is None else parent.events, None
        metrics = Metrics()
        metrics.process.describe("backoffice")
        tracer = open_tracer(settings, "backoffice", metrics, stack)
        database = await open_database(settings, readonly=parent is not None)
        stack.push_async_callback(database.close)
        clock = await started_clock(database, metrics)
        books = await stack.enter_async_context(open_books(settings))
        bus: Bus
        if settings.kafka is not None and parent is None:
            from switchyard.adapters.kafka.messages import MessageReader

            reader = MessageReader((await database.journal.installation()).id, keys, metrics.backoffice.rejected)
            bus = kafka_bus = await _open_kafka_bus(settings.kafka, reader, books.ledger, wake, stack)
        else:
            bus = _journal_bus(settings, database.journal, tracer, stack)
        consumer = Consumer(bus, books.ledger, clock=clock, metrics=metrics.backoffice, tracer=tracer)
        await consumer.open()
        # With orders in the parent the books are only stopped, which is an alarm.
        if consumer.source_problem is not None and parent is None:
            raise CannotStart(consumer.source_problem)
        supervisor = Supervisor(metrics)
        supervisor.start(stack, "clock", clock.run)
        supervisor.start(stack, "books", lambda: consumer.run(wake))
        database.listen(wake.notify)
        await _start_rechecks(settings, database, books, parent, clock, metrics, tracer, supervisor, stack)
        office = BackOffice(
            books,
            consumer,
            metrics,
            supervisor=supervisor,
            folder=settings.data_dir,
            database=database,
            posting_clock=clock,
            marks=Marks(parent, Router(settings.default_route, settings.symbol_routes)),
        )
        office.reconcile = await start_reconciler(
            settings,
            books,
            database,
            venues=await open_statements(settings, clock, metrics, supervisor, stack, reads_paper=parent is not None),
            quotes=parent,
            clock=clock,
            metrics=metrics,
            supervisor=supervisor,
            stack=stack,
        )
        add_reconcile_check(office.reconcile, office.readiness)
        office.kafka_bus = kafka_bus
        yield office


async def _start_rechecks(
    settings: Settings,
    database: Database,
    books: OpenBooks,
    parent: Parent | None,
    clock: Clock,
    metrics: Metrics,
    tracer: Tracer | None,
    supervisor: Supervisor,
    stack: AsyncExitStack,
) -> None:
    """Start the workers of rechecks; kills go through the parent, or into the database where there is none."""
    store = await open_pdca_store(settings, tracer=tracer)
    stack.push_async_callback(store.close)
    restrict = restricting(await kill_switch_of(database, settings)) if parent is None else parent.restrict
    worker = recheck_worker(
        settings,
        database,
        LedgerFills(books.ledger, books.lookup),
        store,
        clock=clock,
        metrics=metrics,
        restrict=restrict,
        tracer=tracer,
    )
    # Without a parent it is never notified: requests are stored by other processes.
    wake = Wake() if parent is None else parent.rechecks
    supervisor.start(stack, "rechecks", lambda: worker.run(wake))
    if parent is not None:
        rechecks = Rechecks(worker, store)
        supervisor.start(stack, "rechecks of commands", rechecks.run)
        parent.on_recheck(rechecks.want)


async def _open_kafka_bus(
    kafka: KafkaSettings, reader: "MessageReader", ledger: Ledger, wake: Wake, stack: AsyncExitStack
) -> "KafkaBus":
    """The bus, which joins the group once Kafka answers; CannotStart where the topic is not the one of the books."""
    from switchyard.adapters.kafka.bus import KafkaBus
    from switchyard.adapters.kafka.configuration import check_properties
    from switchyard.adapters.kafka.messages import topic_id_of

    check_properties(kafka)
    # A source that was reset to its start says nothing about the topic that follows.
    read = [state.source for state in await ledger.sources() if state.position != Offset()]
    former_ids = frozenset(filter(None, map(topic_id_of, read)))
    bus = KafkaBus(kafka, reader, former_ids=former_ids, on_messages=wake.notify)
    stack.push_async_callback(bus.close)
    return bus


def _journal_bus(settings: Settings, journal: Journal, tracer: Tracer | None, stack: AsyncExitStack) -> JournalBus:
    """The journal as the bus; where the books serve several processes, one at a time reads it."""
    lock = reader_lock(settings)
    if lock is not None:
        stack.push_async_callback(lock.give_up)
    return JournalBus(journal, lock, None if tracer is None else EventTraces(journal))
