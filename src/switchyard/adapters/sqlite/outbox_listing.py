"""Outbox rows for operators, read on a separate read-only connection."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from switchyard.adapters.sqlite import rows
from switchyard.adapters.sqlite.connections import connect
from switchyard.adapters.system_clock import SystemClock
from switchyard.adapters.tables import EVENT_COLUMNS, ORDERS, OUTBOX_ORDERS
from switchyard.domain.ids import OrderId
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxRow
from switchyard.ports.journal import PAGE_MAX
from switchyard.ports.outbox import DOUBTS_MAX

_SELECT = f"SELECT {OUTBOX_ORDERS.column_list} FROM outbox_orders WHERE status = ? ORDER BY seq LIMIT ?"
_SELECT_OF = f"SELECT {OUTBOX_ORDERS.column_list} FROM outbox_orders WHERE order_id = ? ORDER BY kind, number"
_SELECT_ORDER = f"SELECT {ORDERS.column_list} FROM orders WHERE order_id = ?"
_SELECT_EVENTS = f"SELECT {EVENT_COLUMNS} FROM journal WHERE order_id = ? ORDER BY seq LIMIT ?"
_SELECT_DOUBTS = f"""
SELECT {EVENT_COLUMNS} FROM journal WHERE order_id = ? AND type = 'OrderUncertain'
ORDER BY seq DESC LIMIT {DOUBTS_MAX}
"""

_SELECT_CURSORS = "SELECT name, hash FROM reader_cursors WHERE name IN (SELECT value FROM json_each(?))"


class SqliteOutboxListing:
    """ports.outbox_listing.OutboxListing, usable while another process holds the file lock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def rows(self, status: str, limit: int) -> Sequence[OutboxRow]:
        """Rows of one status, oldest first."""
        selected = await asyncio.to_thread(self._read, _SELECT, (status, min(limit, PAGE_MAX)))
        return list(map(rows.outbox_row, selected))

    async def rows_of(self, order_id: OrderId) -> Sequence[OutboxRow]:
        """The rows of one order."""
        return list(map(rows.outbox_row, await asyncio.to_thread(self._read, _SELECT_OF, (order_id,))))

    async def history_of(self, order_id: OrderId, limit: int) -> tuple[Order, Sequence[JournalEvent]] | None:
        """One order with its first events."""
        found = await asyncio.to_thread(self._read, _SELECT_ORDER, (order_id,))
        if not found:
            return None
        events = await asyncio.to_thread(self._read, _SELECT_EVENTS, (order_id, min(limit, PAGE_MAX)))
        return rows.order(found[0]), list(map(rows.journal_event, events))

    async def doubts_of(self, order_id: OrderId) -> Sequence[JournalEvent]:
        """The last `OrderUncertain` events of one order, newest first."""
        return list(map(rows.journal_event, await asyncio.to_thread(self._read, _SELECT_DOUBTS, (order_id,))))

    async def cursors(self, names: Sequence[str]) -> tuple[Mapping[str, str], datetime]:
        """The texts of cursors, and the machine's time, which is the database's."""
        listed = json.dumps(list(names))
        rows = await asyncio.to_thread(self._read, _SELECT_CURSORS, (listed,))
        return dict(rows), SystemClock().now()

    def _read(self, sql: str, values: tuple[str | int, ...]) -> list[Any]:
        connection = connect(self._path, readonly=True)
        try:
            return connection.execute(sql, values).fetchall()
        finally:
            connection.close()
