"""Reads the database of a measured server, to check its results against the stored orders."""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import apsw
import asyncpg

from bench.processes import BenchError

POLL_SECONDS = 0.5
DRAIN_SECONDS_MAX = 300.0
SQLITE_MAGIC = b"SQLite format 3\x00"

COUNT = "SELECT count(*) FROM orders"
PROGRESS = """
    SELECT count(*),
           count(*) FILTER (WHERE status IN ('FILLED', 'CANCELED', 'REJECTED', 'EXPIRED')),
           count(*) FILTER (WHERE status = 'FILLED')
    FROM orders
"""


class Store(Protocol):
    """The database behind one server."""

    def rows(self, query: str) -> Sequence[Any]:
        """Return the rows of a query."""
        ...

    def times(self, since: datetime) -> list[tuple[datetime, datetime]]:
        """Return the times of acceptance and of the last change of each order accepted since then."""
        ...


class PostgresStore:
    def __init__(self, url: str) -> None:
        self.url = url

    def times(self, since: datetime) -> list[tuple[datetime, datetime]]:
        rows = self.rows("SELECT accepted_at, updated_at FROM orders WHERE accepted_at >= $1", since)
        return [(row[0], row[1]) for row in rows]

    def rows(self, query: str, *values: Any) -> Sequence[Any]:
        async def fetch() -> Sequence[Any]:
            connection = await asyncpg.connect(self.url)
            try:
                rows: Sequence[Any] = await connection.fetch(query, *values)
                return rows
            finally:
                await connection.close()

        return asyncio.run(fetch())


class SqliteStore:
    """Opens a connection per query, so that it does not block a checkpoint of the server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def times(self, since: datetime) -> list[tuple[datetime, datetime]]:
        rows = self.rows("SELECT accepted_at, updated_at FROM orders")
        times = [(datetime.fromisoformat(accepted), datetime.fromisoformat(updated)) for accepted, updated in rows]
        return [pair for pair in times if pair[0] >= since]

    def rows(self, query: str) -> Sequence[Any]:
        connection = apsw.Connection(str(self._file()), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(5_000)
            return list(connection.execute(query))
        finally:
            connection.close()

    def _file(self) -> Path:
        for path in sorted(self.folder.iterdir()):
            if path.is_file():
                with path.open("rb") as file:
                    if file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC:
                        return path
        raise BenchError(f"no SQLite database in {self.folder}")


def count_orders(store: Store) -> int:
    return int(store.rows(COUNT)[0][0])


def wait_until_finished(store: Store) -> None:
    """Wait until every order is final and no more arrive; raises BenchError if one was not filled."""
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    previous = -1
    while time.monotonic() < deadline:
        orders, final, filled = store.rows(PROGRESS)[0]
        # Orders in flight at the end of the load may still arrive; two polls with equal counts show that none did.
        if orders == final == previous:
            if filled != orders:
                raise BenchError(f"{orders - filled} orders ended without being filled")
            return
        previous = orders
        time.sleep(POLL_SECONDS)
    raise BenchError(f"{orders - final} orders were not final after {DRAIN_SECONDS_MAX:.0f} s")
