"""The PDCA store, the API's parts, and the rechecks that a process carries out."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import structlog

from switchyard.adapters.pdca.store import SqlPdcaStore
from switchyard.adapters.sqlite.connections import no_database
from switchyard.bootstrap.books import books_url, existing_books
from switchyard.bootstrap.core import Core, Supervisor, open_tracer
from switchyard.bootstrap.databases import Database, kill_switch_of, open_database, started_clock
from switchyard.domain.errors import Unavailable
from switchyard.domain.ids import AccountId, KillId
from switchyard.domain.risk.kills import PDCA, Kill
from switchyard.domain.strategies.metrics import Minimum
from switchyard.domain.strategies.requests import RecheckRequest, RunnerName
from switchyard.flow.backoffice.consumer import Consumer
from switchyard.flow.backoffice.source import JournalBus
from switchyard.flow.clock import Wake
from switchyard.flow.kill.switch import KillRequest, KillSwitch
from switchyard.flow.pdca.recheck import LedgerFills, NoBooks, Recheck, RecheckRules
from switchyard.flow.pdca.worker import Dispatch, EmbeddedRunner, Enforcement, RecheckWorker, Restrict, enforce_nothing
from switchyard.flow.registry.follower import RecheckReaper, StrategyFollower
from switchyard.ports.books import Ledger
from switchyard.ports.bus import Bus
from switchyard.ports.clock import Clock
from switchyard.ports.strategies import PdcaStore, StrategyFills
from switchyard.ports.tracing import Tracer
from switchyard.settings import Settings
from switchyard.telemetry.metrics import Metrics

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


Submit = Callable[[RecheckRequest], Awaitable[None]]
# How often a command looks whether another worker has ended the items that it holds.
POLL_SECONDS = 0.5
IDLE_SECONDS = 60.0
# Requests of commands that one process works on at a time; Airflow runs four at a time.
WANTED_MAX = 64


def restricting(kill_switch: KillSwitch) -> Restrict:
    """How an unhealthy strategy is made reduce-only: by a kill in the name `pdca`."""

    async def restrict(account: AccountId, strategy: str, reason: str, kill_id: KillId) -> Kill:
        request = KillRequest(account=account, strategy=strategy, mode="reduce_only", by=PDCA, reason=reason)
        return await kill_switch.set_by_program(request, new_id=kill_id)

    return restrict


def recheck_worker(
    settings: Settings,
    database: Database,
    fills: StrategyFills,
    store: PdcaStore,
    *,
    clock: Clock,
    metrics: Metrics,
    restrict: Restrict,
    tracer: Tracer | None = None,
) -> RecheckWorker:
    """A worker of rechecks on these books."""
    chosen = settings.rechecks
    recheck = Recheck(
        journal=database.journal,
        queries=database.queries,
        orders=database.strategy_orders,
        fills=fills,
        clock=clock,
        rules=RecheckRules(chosen.days_per_year, Minimum(chosen.days_min, chosen.sample_min)),
        enforce=(Enforcement(store, database.kills, restrict) if chosen.enforce == "reduce_only" else enforce_nothing),
    )
    name = f"{socket.gethostname()}:{os.getpid()}"
    return RecheckWorker(
        store,
        recheck,
        name=name,
        clock=clock,
        metrics=metrics.rechecks,
        parallel=chosen.parallelism,
        tracer=tracer,
    )


class Rechecks:
    """The workers of a process that keeps the books."""

    def __init__(self, worker: RecheckWorker, store: PdcaStore) -> None:
        self._worker = worker
        self._store = store
        self._wanted: set[str] = set()
        self._wake = Wake()

    def want(self, request_id: str) -> None:
        """Carry out a request of another runner, as its command asks; a repeat changes nothing."""
        if request_id not in self._wanted and len(self._wanted) >= WANTED_MAX:
            raise Unavailable(f"{WANTED_MAX} rechecks are under way for commands, the maximum: try again")
        self._wanted.add(request_id)
        self._wake.notify()

    async def run(self) -> None:
        """Work on the wanted requests until cancelled, a few items of each in turn."""
        while True:
            if not self._wanted:
                await self._wake.wait(IDLE_SECONDS)
            worked = [await self._advance(request_id) for request_id in sorted(self._wanted)]
            if worked and not any(worked):
                await asyncio.sleep(POLL_SECONDS)  # other workers have the rest

    async def _advance(self, request_id: str) -> int:
        count = await self._worker.run_once(request_id)
        stored = await self._store.request(request_id)
        if stored is None or stored.finished_at is not None:
            self._wanted.discard(request_id)
        return count


def start_rechecks_without_books(core: Core, pdca: PdcaOffice, stack: AsyncExitStack) -> Rechecks:
    """End every recheck with an error, on SQLite without a back office: no other process can keep the books."""
    worker = recheck_worker(
        core.settings,
        core.database,
        NoBooks(),
        pdca.store,
        clock=core.clock,
        metrics=core.metrics,
        restrict=restricting(core.kill_switch),
        tracer=core.tracer,
    )
    rechecks = Rechecks(worker, pdca.store)
    core.supervisor.start(stack, "rechecks", lambda: worker.run(pdca.rechecks))
    core.supervisor.start(stack, "rechecks of commands", rechecks.run)
    return rechecks


def start_dispatch(
    settings: Settings,
    store: PdcaStore,
    *,
    clock: Clock,
    metrics: Metrics,
    tracer: Tracer | None,
    supervisor: Supervisor,
    wake: Wake,
    stack: AsyncExitStack,
) -> Submit:
    """The hook that tells the configured runner of a stored request; with Airflow also the stage that follows runs."""
    chosen = settings.rechecks
    if chosen.runner == "embedded":
        embedded = EmbeddedRunner(store, wake)

        async def submit(request: RecheckRequest) -> None:
            await embedded.submit(request)

        return submit
    assert chosen.airflow_url is not None, "the settings were checked"
    assert chosen.airflow_username is not None and chosen.airflow_password is not None, "the settings were checked"
    from switchyard.adapters.airflow.client import AirflowClient
    from switchyard.adapters.airflow.runner import AirflowRunner

    client = AirflowClient(
        chosen.airflow_url, chosen.airflow_username, chosen.airflow_password, metrics.rechecks, tracer
    )
    runner = AirflowRunner(client, chosen.airflow_dag)
    stack.push_async_callback(runner.close)
    dispatch = Dispatch(
        store, store, runner, clock=clock, metrics=metrics.rechecks, queued_max=chosen.airflow_queued_max
    )
    supervisor.start(stack, "recheck dispatch", lambda: dispatch.run(wake))
    return dispatch.submit


async def work_through(worker: RecheckWorker, store: PdcaStore, request_id: str) -> None:
    """Recheck until every item of the request has ended, here or by another worker."""
    while True:
        count = await worker.run_once(request_id)
        stored = await store.request(request_id)
        if stored is None or stored.finished_at is not None:
            return
        if not count:
            await asyncio.sleep(POLL_SECONDS)


async def carry_out_recheck(settings: Settings, request_id: str) -> None:
    """Carry out a stored request; raises AlreadyRunning where a server holds the database or the books."""
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        tracer = open_tracer(settings, "pdca run", metrics, stack)
        database = await open_database(settings)
        stack.push_async_callback(database.close)
        books = await stack.enter_async_context(existing_books(settings))
        kill_switch = await kill_switch_of(database, settings)
        clock = await started_clock(database)
        if books_url(settings) is None:
            # Nobody else keeps a file of books while it is open here; books in a database have their own reader.
            await _catch_up(JournalBus(database.journal), books.ledger, clock, metrics)
        store = await open_pdca_store(settings, create=False, tracer=tracer)
        stack.push_async_callback(store.close)
        worker = recheck_worker(
            settings,
            database,
            LedgerFills(books.ledger, books.lookup),
            store,
            clock=clock,
            metrics=metrics,
            restrict=restricting(kill_switch),
            tracer=tracer,
        )
        await work_through(worker, store, request_id)


async def _catch_up(bus: Bus, ledger: Ledger, clock: Clock, metrics: Metrics) -> None:
    consumer = Consumer(bus, ledger, clock=clock, metrics=metrics.backoffice)
    await consumer.open()
    while await consumer.run_once():
        pass
