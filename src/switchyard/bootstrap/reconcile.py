"""Builds the reconciliation of a process that keeps the books, and opens the venues that it asks."""

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from switchyard.adapters.backoffice.breaks import SqliteBreaks
from switchyard.adapters.backoffice.postgres_breaks import PostgresBreaks
from switchyard.adapters.venues.http.venue import HttpVenue
from switchyard.bootstrap.books import OpenBooks, books_url
from switchyard.bootstrap.core import Core
from switchyard.bootstrap.databases import Database
from switchyard.bootstrap.supervisor import Supervisor
from switchyard.bootstrap.venues import credentials_of, declared_capabilities, names_at
from switchyard.domain.ids import VenueName
from switchyard.domain.instruments import Catalogue
from switchyard.flow.health.readiness import ReadinessChecks
from switchyard.flow.reconcile.desk import ReconcileDesk
from switchyard.flow.reconcile.freshness import check_reconciliation
from switchyard.flow.reconcile.gateway_side import GatewaySide
from switchyard.flow.reconcile.pace import Pace
from switchyard.flow.reconcile.reconciler import Reconciler
from switchyard.ports.clock import Clock
from switchyard.ports.quotes import Quotes
from switchyard.ports.statement import VenueStatement
from switchyard.ports.venue import Venue
from switchyard.settings import Settings
from switchyard.telemetry.metrics import Metrics


def breaks_path(settings: Settings) -> Path:
    """The file of the breaks; beside the books, because a rebuild replaces those."""
    return settings.data_dir / "breaks.db"


async def reconcile_beside(core: Core, books: OpenBooks, stack: AsyncExitStack) -> ReconcileDesk:
    """Reconcile in a process that also handles orders; after its venues are open."""
    venues = (
        statements_of(core.settings, core.venues)
        if core.venues
        else await open_statements(core.settings, core.clock, stack)
    )
    return await start_reconciler(
        core.settings,
        books,
        core.database,
        venues=venues,
        quotes=core.quotes,
        clock=core.clock,
        metrics=core.metrics,
        supervisor=core.supervisor,
        stack=stack,
        shares=True,
    )


async def start_reconciler(
    settings: Settings,
    books: OpenBooks,
    database: Database,
    *,
    venues: dict[VenueName, VenueStatement | str],
    quotes: Quotes | None,
    clock: Clock,
    metrics: Metrics,
    supervisor: Supervisor,
    stack: AsyncExitStack,
    shares: bool,
) -> ReconcileDesk:
    """Open the breaks and compare for as long as the process lives, unless the setting says otherwise."""
    url, ledger = books_url(settings), books.ledger
    breaks = await SqliteBreaks.open(breaks_path(settings)) if url is None else await PostgresBreaks.open(url)
    stack.push_async_callback(breaks.close)
    reconciler: Reconciler | None = None
    if settings.reconcile:
        pace = Pace(clock, shares=shares)
        reconciler = Reconciler(
            dump=books.dump,
            lookup=books.lookup,
            manual=ledger,
            gateway=GatewaySide(
                journal=database.journal,
                queries=database.queries,
                accounts=database.accounts,
                ledger=ledger,
                pace=pace,
                clock=clock,
            ),
            journal=database.journal,
            queries=database.queries,
            venues=venues,
            breaks=breaks,
            clock=clock,
            pace=pace,
            metrics=metrics.reconcile,
            quiet=settings.reconcile_quiet,
            interval=settings.reconcile_interval,
        )
        await reconciler.show_counts()
        supervisor.start(stack, "reconcile", reconciler.run)
    return ReconcileDesk(
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


def add_reconcile_check(desk: ReconcileDesk, *readiness: ReadinessChecks) -> None:
    """Whether the books are compared and agree, where they are compared; orders do not wait for it."""
    if desk.reconciler is not None:
        for checks in readiness:
            checks.add("reconcile", partial(check_reconciliation, desk.reconciler), worst="degraded")


def statements_of(settings: Settings, opened: dict[VenueName, Venue]) -> dict[VenueName, VenueStatement | str]:
    """The open venues as sources of statements, or why one is none."""
    return {
        venue.name: found if isinstance(found := opened.get(venue.name), VenueStatement) else "it has no statement"
        for venue in settings.venues
    }


async def open_statements(
    settings: Settings, clock: Clock, stack: AsyncExitStack
) -> dict[VenueName, VenueStatement | str]:
    """The brokers, opened for questions only, in a process that sends no orders."""
    found: dict[VenueName, VenueStatement | str] = {}
    for venue in settings.venues:
        if not venue.url.startswith("http"):
            found[venue.name] = "it runs in the process of its worker"
            continue
        broker = HttpVenue(
            venue.name,
            url=venue.url,
            capabilities=declared_capabilities(venue),
            clock=clock,
            names=names_at(venue),
            headers=credentials_of(venue),
            sends_orders=False,
        )
        await broker.start()
        stack.push_async_callback(broker.close)
        found[venue.name] = broker
    return found
