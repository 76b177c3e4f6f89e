"""Carries out a stored recheck in a command, on the database and the books that no server holds."""

from contextlib import AsyncExitStack

from switchyard.bootstrap.books import books_url, existing_books
from switchyard.bootstrap.databases import kill_switch_of, open_database, started_clock
from switchyard.bootstrap.pdca import open_pdca_store
from switchyard.bootstrap.rechecks import recheck_worker, restricting, work_through
from switchyard.bootstrap.tracing import open_tracer
from switchyard.flow.backoffice.consumer import Consumer
from switchyard.flow.backoffice.source import JournalBus
from switchyard.flow.pdca.recheck import LedgerFills
from switchyard.ports.books import Ledger
from switchyard.ports.bus import Bus
from switchyard.ports.clock import Clock
from switchyard.settings import Settings
from switchyard.telemetry.metrics import Metrics


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
