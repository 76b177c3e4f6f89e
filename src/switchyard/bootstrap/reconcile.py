"""Builds the reconciliation of a process that keeps the books, and opens the venues that it asks."""

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from switchyard.adapters.backoffice.breaks import SqliteBreaks
from switchyard.adapters.backoffice.postgres_breaks import PostgresBreaks
from switchyard.adapters.venues.http.venue import SENDS, HttpVenue
from switchyard.adapters.venues.paper.statement import PaperStatement
from switchyard.bootstrap.books import OpenBooks, books_url
from switchyard.bootstrap.databases import Database
from switchyard.bootstrap.supervisor import Supervisor
from switchyard.bootstrap.venues import credentials_of, declared_capabilities, names_at, paper_path
from switchyard.domain.ids import VenueName
from switchyard.domain.market.instruments import Catalogue
from switchyard.flow.health.readiness import ReadinessChecks
from switchyard.flow.reconcile.matching import GatewaySide
from switchyard.flow.reconcile.reconciler import Reconciler, check_reconciliation
from switchyard.flow.reconcile.service import ReconcileService
from switchyard.ports.clock import Clock
from switchyard.ports.quotes import QuoteLookup
from switchyard.ports.venue import VenueStatement
from switchyard.settings import Settings
from switchyard.telemetry.metrics import Metrics


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
    settings: Settings, clock: Clock, stack: AsyncExitStack, *, reads_paper: bool
) -> dict[VenueName, VenueStatement | str]:
    """The brokers, opened for questions only, or why a venue cannot be asked.

    `reads_paper`: whether the paper exchanges' files are those in this data folder.
    """
    found: dict[VenueName, VenueStatement | str] = {}
    for venue in settings.venues:
        if venue.url == "paper:" and reads_paper:
            path = paper_path(settings, venue.name)
            found[venue.name] = PaperStatement(venue.name, path, declared_capabilities(venue))
            continue
        if not venue.url.startswith("http"):
            found[venue.name] = "it has no statement" if reads_paper else "it runs in the process of its worker"
            continue
        broker = HttpVenue(
            venue.name,
            url=venue.url,
            capabilities=declared_capabilities(venue),
            clock=clock,
            names=names_at(venue),
            headers=credentials_of(venue),
            sends=replace(SENDS, spares_min=0),  # it sends none
        )
        await broker.start()
        stack.push_async_callback(broker.close)
        found[venue.name] = broker
    return found
