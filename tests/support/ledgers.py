"""Ledgers of both engines for the contract suites: as many as a test needs, by name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from switchyard.adapters.backoffice.ledger import SqlLedger
from switchyard.adapters.backoffice.postgres.ledger import PostgresLedger
from switchyard.adapters.backoffice.sqlite.ledger import SqliteLedger
from switchyard.bootstrap.books import OpenBooks


class Ledgers:
    """Opens ledgers: files of a folder, or schemas of a database."""

    def __init__(self, place: Path | str) -> None:
        self._place = place
        self._opened: list[SqlLedger] = []

    @property
    def is_sqlite(self) -> bool:
        return isinstance(self._place, Path)

    async def open(self, name: str = "books") -> OpenBooks:
        """The ledger of this name; a new one at the first time."""
        ledger: SqlLedger
        if isinstance(self._place, Path):
            ledger = await SqliteLedger.open(self._place / f"{name}.db")
        else:
            ledger = await PostgresLedger.open(self._place, name)
        self._opened.append(ledger)
        return OpenBooks(ledger)

    async def close(self) -> None:
        """Close all that are open."""
        while self._opened:
            await self._opened.pop().close()


@asynccontextmanager
async def opened_ledgers(place: Path | str) -> AsyncIterator[Ledgers]:
    ledgers = Ledgers(place)
    try:
        yield ledgers
    finally:
        await ledgers.close()
