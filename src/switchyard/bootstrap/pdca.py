"""The PDCA store of a process, and the stages that follow orders into its registry and remove what is old."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import structlog

from switchyard.adapters.pdca.store import SqlPdcaStore
from switchyard.adapters.sqlite.connections import no_database
from switchyard.bootstrap.core import Core
from switchyard.domain.strategies.requests import RecheckRequest, RunnerName
from switchyard.flow.clock import Wake
from switchyard.flow.registry.follower import RecheckReaper, StrategyFollower
from switchyard.ports.clock import Clock
from switchyard.ports.strategies import PdcaStore
from switchyard.ports.tracing import Tracer
from switchyard.settings import Settings

log = structlog.get_logger()


class PdcaOffice:
    """The parts of PDCA that its API uses."""

    def __init__(self, store: PdcaStore, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        """Dates requests and results."""
        self.rechecks = Wake()
        """Notified when a request was stored."""
        self.runner: RunnerName = "embedded"
        """Who carries out new requests."""
        self.submit: Callable[[RecheckRequest], Awaitable[None]] = self._notify
        """Tells the runner of a stored request; raises RunnerDown."""

    async def _notify(self, _request: RecheckRequest) -> None:
        self.rechecks.notify()


def pdca_path(settings: Settings) -> Path:
    """The file of the store, where no PostgreSQL database is configured."""
    return settings.data_dir / "pdca.db"


async def open_pdca_store(settings: Settings, *, create: bool = True, tracer: Tracer | None = None) -> PdcaStore:
    """Open the store of a process; a command must not create one, which no server would look into."""
    if settings.database_url is not None:
        return await SqlPdcaStore.on_postgres(settings.database_url, tracer)
    if not create and not pdca_path(settings).exists():
        raise no_database(pdca_path(settings))
    return await SqlPdcaStore.on_file(pdca_path(settings), tracer)


async def start_pdca(core: Core, stack: AsyncExitStack) -> PdcaOffice:
    """Open the store and start its stages, in a process that serves the API."""
    path = pdca_path(core.settings)
    is_new = core.settings.database_url is None and not path.exists()
    store = await open_pdca_store(core.settings, tracer=core.tracer)
    stack.push_async_callback(store.close)
    if is_new and (await core.database.journal.head(0)).seq:
        # Strategies come back from the journal, their thresholds do not: nothing is judged or enforced without them.
        log.warning("pdca_store_created", path=str(path))
    follower = StrategyFollower(core.database.journal, store, clock=core.clock)
    core.supervisor.start(stack, "strategies", follower.run)
    retention = timedelta(days=core.settings.pdca_api.retention_days)
    core.supervisor.start(stack, "rechecks reaper", RecheckReaper(store, core.clock, retention).run)
    return PdcaOffice(store, core.clock)
