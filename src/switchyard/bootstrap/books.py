"""Opens the books where the settings have them: the schema of a PostgreSQL database, or a SQLite file."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from switchyard.adapters.backoffice.dump import SqliteLedgerDump
from switchyard.adapters.backoffice.ledger import SqliteLedger
from switchyard.adapters.backoffice.lookup import SqliteLedgerLookup
from switchyard.adapters.backoffice.postgres.dump import PostgresLedgerDump
from switchyard.adapters.backoffice.postgres.ledger import PostgresLedger, has_books
from switchyard.adapters.backoffice.postgres.lookup import PostgresLedgerLookup
from switchyard.adapters.backoffice.postgres.reports import PostgresLedgerReports
from switchyard.adapters.backoffice.postgres.turn import PostgresTurn
from switchyard.adapters.backoffice.reports import SqliteLedgerReports
from switchyard.adapters.postgres.connection import single_connection
from switchyard.domain.errors import CannotStart
from switchyard.ports.books import Ledger, LedgerDump, LedgerLookup, LedgerReports, ManualLedger
from switchyard.ports.journal import Turn
from switchyard.settings import Settings

SQLITE = "sqlite"
"""The value of the setting that names the file."""


class WholeLedger(Ledger, ManualLedger, Protocol):
    """What events and people book."""


class OpenBooks:
    """One open ledger behind its ports."""

    def __init__(self, ledger: SqliteLedger | PostgresLedger) -> None:
        self.ledger: WholeLedger = ledger
        self.dump: LedgerDump
        self.reports: LedgerReports
        self.lookup: LedgerLookup
        if isinstance(ledger, PostgresLedger):
            self.dump, self.reports = PostgresLedgerDump(ledger), PostgresLedgerReports(ledger)
            self.lookup = PostgresLedgerLookup(ledger)
        else:
            self.dump, self.reports = SqliteLedgerDump(ledger), SqliteLedgerReports(ledger)
            self.lookup = SqliteLedgerLookup(ledger)


def books_url(settings: Settings) -> str | None:
    """The database of the books; none where they are in the file."""
    if settings.backoffice_url == SQLITE:
        return None
    return settings.backoffice_url or settings.database_url


def books_path(settings: Settings) -> Path:
    """The file of the books."""
    return settings.data_dir / "backoffice.db"


def journal_turn(settings: Settings) -> Turn | None:
    """What decides which process reads the journal; none where the books serve one process."""
    url = books_url(settings)
    return None if url is None else PostgresTurn(url)


@asynccontextmanager
async def open_books(settings: Settings) -> AsyncIterator[OpenBooks]:
    """Open the books, or create them."""
    url = books_url(settings)
    ledger: SqliteLedger | PostgresLedger
    ledger = await SqliteLedger.open(books_path(settings)) if url is None else await PostgresLedger.open(url)
    try:
        yield OpenBooks(ledger)
    finally:
        await ledger.close()


@asynccontextmanager
async def existing_books(settings: Settings) -> AsyncIterator[OpenBooks]:
    """Open the books for a command that must not create them."""
    url = books_url(settings)
    if url is None:
        exists, where = books_path(settings).exists(), str(books_path(settings).absolute())
    else:
        where = "the schema backoffice of the database"
        async with single_connection(url) as connection:
            exists = await has_books(connection)
    if not exists:
        raise CannotStart(f"there are no books in {where}: `switchyard up` creates them")
    async with open_books(settings) as books:
        yield books
