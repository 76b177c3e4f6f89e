"""Outbox rows for operators, read on a separate connection."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import asyncpg

from switchyard.adapters.postgres import rows
from switchyard.adapters.postgres.connection import single_connection
from switchyard.adapters.tables import EVENT_COLUMNS, ORDERS, OUTBOX_ORDERS
from switchyard.domain.ids import OrderId
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxRow
from switchyard.ports.journal import PAGE_MAX
from switchyard.ports.outbox import DOUBTS_MAX

_SELECT = f"SELECT {OUTBOX_ORDERS.column_list} FROM outbox_orders WHERE status = $1 ORDER BY seq LIMIT $2"
_SELECT_OF = f"SELECT {OUTBOX_ORDERS.column_list} FROM outbox_orders WHERE order_id = $1 ORDER BY kind, number"
_SELECT_ORDER = f"SELECT {ORDERS.column_list} FROM orders WHERE order_id = $1"
_SELECT_EVENTS = f"SELECT {EVENT_COLUMNS} FROM journal WHERE order_id = $1 ORDER BY seq LIMIT $2"
_SELECT_DOUBTS = f"""
SELECT {EVENT_COLUMNS} FROM journal WHERE order_id = $1 AND type = 'OrderUncertain'
ORDER BY seq DESC LIMIT {DOUBTS_MAX}
"""

# One row at least, for the time.
_SELECT_CURSORS = """
SELECT clock_timestamp() AS now, name, hash FROM (SELECT 1) AS once LEFT JOIN reader_cursors ON name = ANY($1)
"""


class PostgresOutboxListing:
    """ports.outbox_listing.OutboxListing on PostgreSQL."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def rows(self, status: str, limit: int) -> Sequence[OutboxRow]:
        """Rows of one status, oldest first."""
        return [rows.outbox_row(record) for record in await self._read(_SELECT, status, min(limit, PAGE_MAX))]

    async def rows_of(self, order_id: OrderId) -> Sequence[OutboxRow]:
        """The rows of one order."""
        return [rows.outbox_row(record) for record in await self._read(_SELECT_OF, order_id)]

    async def history_of(self, order_id: OrderId, limit: int) -> tuple[Order, Sequence[JournalEvent]] | None:
        """One order with its first events."""
        found = await self._read(_SELECT_ORDER, order_id)
        if not found:
            return None
        events = await self._read(_SELECT_EVENTS, order_id, min(limit, PAGE_MAX))
        return rows.order(found[0]), list(map(rows.journal_event, events))

    async def doubts_of(self, order_id: OrderId) -> Sequence[JournalEvent]:
        """The last `OrderUncertain` events of one order, newest first."""
        return [rows.journal_event(record) for record in await self._read(_SELECT_DOUBTS, order_id)]

    async def cursors(self, names: Sequence[str]) -> tuple[Mapping[str, str], datetime]:
        """The texts of cursors, and the database's time."""
        found = await self._read(_SELECT_CURSORS, list(names))
        return {record["name"]: record["hash"] for record in found if record["name"] is not None}, found[0]["now"]

    async def _read(self, sql: str, *values: str | int | list[str]) -> list[asyncpg.Record]:
        async with single_connection(self._url) as connection:
            records: list[asyncpg.Record] = await connection.fetch(sql, *values)
            return records
