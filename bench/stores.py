"""Reads the database of a measured server, to check its results against the stored orders."""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import apsw
import asyncpg

from bench.processes import BenchError

POLL_SECONDS = 0.5
# A poll counts all orders; the pause after it is this many times as long, so that polls use at most a tenth of a core.
POLL_PAUSE_FACTOR = 10
DRAIN_SECONDS_MAX = 300.0

FILLED = "FILLED"
COUNT = "SELECT count(*) FROM orders"
PROGRESS = """
    SELECT count(*),
           count(*) FILTER (WHERE status IN ('FILLED', 'CANCELED', 'REJECTED', 'EXPIRED'))
    FROM orders
"""


SELECT_ORDERS = "SELECT accepted_at, updated_at, status FROM orders"


class StoredOrder(NamedTuple):
    """When an order was accepted and last changed."""

    accepted_at: datetime
    updated_at: datetime
    status: str


class Store(Protocol):
    """The database behind one server."""

    def rows(self, query: str) -> Sequence[Any]:
        """Return the rows of a query."""
        ...

    def orders(self, since: datetime) -> list[StoredOrder]:
        """Return the orders that were accepted since then."""
        ...

    def bytes(self) -> int:
        """Return the size of the database after a checkpoint."""
        ...


class PostgresStore:
    def __init__(self, url: str) -> None:
        self.url = url

    def orders(self, since: datetime) -> list[StoredOrder]:
        return [StoredOrder(*row) for row in self.rows(f"{SELECT_ORDERS} WHERE accepted_at >= $1", since)]

    def bytes(self) -> int:
        self.rows("CHECKPOINT")
        return int(self.rows("SELECT pg_database_size(current_database())")[0][0])

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

    def __init__(self, folder: Path, name: str = "switchyard.db") -> None:
        self.folder = folder
        self.name = name

    def orders(self, since: datetime) -> list[StoredOrder]:
        orders = (
            StoredOrder(datetime.fromisoformat(accepted), datetime.fromisoformat(updated), status)
            for accepted, updated, status in self.rows(SELECT_ORDERS)
        )
        return [order for order in orders if order.accepted_at >= since]

    def bytes(self) -> int:
        self.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        file = self._file()
        # Empty after the checkpoint, unless a reader of the server held it up.
        log = file.with_name(f"{file.name}-wal")
        return file.stat().st_size + (log.stat().st_size if log.exists() else 0)

    def rows(self, query: str) -> Sequence[Any]:
        connection = apsw.Connection(str(self._file()), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(5_000)
            return list(connection.execute(query))
        finally:
            connection.close()

    def _file(self) -> Path:
        path = self.folder / self.name
        if not path.exists():
            raise BenchError(f"no database {path}")
        return path


def count_orders(store: Store) -> int:
    return int(store.rows(COUNT)[0][0])


def wait_until_finished(store: Store) -> None:
    """Wait until every order is final and no more arrive."""
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    previous = -1
    while time.monotonic() < deadline:
        polled = time.monotonic()
        orders, final = store.rows(PROGRESS)[0]
        # Orders in flight at the end of the load may still arrive; two polls with equal counts show that none did.
        if orders == final == previous:
            return
        previous = orders
        time.sleep(max(POLL_SECONDS, POLL_PAUSE_FACTOR * (time.monotonic() - polled)))
    raise BenchError(f"{orders - final} orders were not final after {DRAIN_SECONDS_MAX:.0f} s")


def check_filled(orders: Sequence[StoredOrder]) -> None:
    """Raise BenchError if one of the orders ended without being filled."""
    unfilled = sum(order.status != FILLED for order in orders)
    if unfilled:
        raise BenchError(f"{unfilled} orders ended without being filled")
