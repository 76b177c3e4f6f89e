"""Reads every order of a SQLite file on a separate read-only connection, a page at a time."""

import asyncio
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path

from switchyard.adapters.sqlite import rows
from switchyard.adapters.sqlite.connections import connect
from switchyard.adapters.tables import ORDERS
from switchyard.domain.ids import OrderId
from switchyard.domain.orders.order import Order
from switchyard.domain.risk.exposure import TotalsKey

# A few megabytes of orders at a time.
PAGE = 5_000


class SqliteOrderDump:
    """ports.rebuild.OrderDump, usable while another process holds the file lock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def all_orders(self) -> AsyncIterator[Order]:
        """Every order of one snapshot, sorted by id."""
        connection = await asyncio.to_thread(connect, self._path, readonly=True)
        try:
            cursor = connection.execute(f"SELECT {ORDERS.column_list} FROM orders ORDER BY order_id")
            while page := await asyncio.to_thread(lambda: list(map(rows.order, islice(cursor, PAGE)))):
                for order in page:
                    yield order
        finally:
            connection.close()

    async def wrong_totals(self) -> list[TotalsKey]:
        """None: the file has no totals, each process adds the orders up itself."""
        return []

    async def wrong_unfinished(self) -> list[OrderId]:
        """None: unfinished orders are found by an index of the orders."""
        return []
