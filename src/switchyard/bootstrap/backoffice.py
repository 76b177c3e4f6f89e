"""The back office: its ledger file and its consumer, beside the stages of `up` or as a process of its own."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from switchyard.adapters.backoffice.ledger import SqliteLedger
from switchyard.adapters.files.private import prepare_data_folder
from switchyard.adapters.kafka.bus import KafkaBus
from switchyard.adapters.system_clock import SystemClock
from switchyard.bootstrap.core import Core
from switchyard.bootstrap.databases import open_database
from switchyard.bootstrap.kafka_bus import open_kafka_bus
from switchyard.bootstrap.supervisor import Supervisor
from switchyard.domain.errors import CannotStart, SettingError
from switchyard.flow.backoffice.consumer import Consumer
from switchyard.flow.backoffice.journal_bus import JournalBus
from switchyard.flow.wake import Wake
from switchyard.ports.bus import Bus
from switchyard.ports.clock import Clock
from switchyard.ports.ledger import Ledger
from switchyard.settings import Settings
from switchyard.telemetry.metrics import Metrics


class BackOffice:
    """The parts of the back office that its API uses."""

    kafka_bus: KafkaBus | None = None
    """Set where the events are read from Kafka."""

    def __init__(self, ledger: Ledger, consumer: Consumer, metrics: Metrics, clock: Clock) -> None:
        self.ledger = ledger
        self.consumer = consumer
        self.metrics = metrics
        self.clock = clock
        """Wall time, for tokens."""


class BackOfficeProcess(BackOffice):
    """A back office that is a process of its own."""

    def __init__(
        self, ledger: Ledger, consumer: Consumer, metrics: Metrics, clock: Clock, supervisor: Supervisor
    ) -> None:
        super().__init__(ledger, consumer, metrics, clock)
        self.stop = supervisor.stop
        self._supervisor = supervisor

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the process, if one did."""
        return self._supervisor.failure


def books_path(settings: Settings) -> Path:
    """The file of the books."""
    return settings.data_dir / "backoffice.db"


async def start_backoffice(core: Core, stack: AsyncExitStack) -> BackOffice:
    """Keep the books in a process that also handles orders; a file that cannot be opened stops the start."""
    ledger = await _opened(core.settings, stack)
    consumer = Consumer(
        JournalBus(core.database.journal),
        ledger,
        clock=core.clock,
        metrics=core.metrics.backoffice,
        shares=True,
    )
    await consumer.open()
    core.supervisor.start(stack, "books", lambda: consumer.run(core.wakes.books))
    return BackOffice(ledger, consumer, core.metrics, core.wall_clock)


@asynccontextmanager
async def running_backoffice(settings: Settings) -> AsyncIterator[BackOfficeProcess]:
    """Run the back office alone: on Kafka where it is enabled, else on a journal in PostgreSQL."""
    if settings.kafka is None and settings.database_url is None:
        raise SettingError(
            "SWITCHYARD_DATABASE_URL",
            "`switchyard backoffice` needs PostgreSQL, because SQLite serves one process: set it to postgresql://…, or "
            "read the events from Kafka (KAFKA_ENABLE), or run `switchyard up`, which keeps the books as well",
        )
    prepare_data_folder(settings.data_dir)
    async with AsyncExitStack() as stack:
        wake, kafka_bus = Wake(), None
        bus: Bus
        if settings.kafka is None:
            bus = await _journal_bus(settings, wake, stack)
            ledger = await _opened(settings, stack)
        else:
            ledger = await _opened(settings, stack)
            bus = kafka_bus = await open_kafka_bus(settings.kafka, ledger, wake, stack)
        clock, metrics = SystemClock(), Metrics()
        consumer = Consumer(bus, ledger, clock=clock, metrics=metrics.backoffice, shares=False)
        await consumer.open()
        if consumer.source_problem is not None:
            raise CannotStart(consumer.source_problem)
        supervisor = Supervisor(metrics)
        supervisor.start(stack, "books", lambda: consumer.run(wake))
        office = BackOfficeProcess(ledger, consumer, metrics, clock, supervisor)
        office.kafka_bus = kafka_bus
        yield office


async def _journal_bus(settings: Settings, wake: Wake, stack: AsyncExitStack) -> JournalBus:
    database = await open_database(settings)
    stack.push_async_callback(database.close)
    database.listen(wake.notify)
    return JournalBus(database.journal)


async def _opened(settings: Settings, stack: AsyncExitStack) -> SqliteLedger:
    ledger = await SqliteLedger.open(books_path(settings))
    stack.push_async_callback(ledger.close)
    return ledger
