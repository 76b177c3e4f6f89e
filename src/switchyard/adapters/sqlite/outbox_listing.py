"""Outbox rows for operators, read on a separate read-only connection."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from switchyard.adapters.sqlite import rows
from switchyard.adapters.sqlite.connections import connect
from switchyard.adapters.tables import OUTBOX_ORDERS
from switchyard.domain.outbox import OutboxRow
from switchyard.ports.journal import PAGE_MAX

_SELECT = f"SELECT {OUTBOX_ORDERS.column_list} FROM outbox_orders WHERE status = ? ORDER BY seq LIMIT ?"


class SqliteOutboxListing:
    """ports.outbox_listing.OutboxListing, usable while another process holds the file lock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def rows(self, status: str, limit: int) -> Sequence[OutboxRow]:
        """Rows of one status, oldest first."""
        return await asyncio.to_thread(self._rows, status, min(limit, PAGE_MAX))

    def _rows(self, status: str, limit: int) -> list[OutboxRow]:
        connection = connect(self._path, readonly=True)
        try:
            return list(map(rows.outbox_row, connection.execute(_SELECT, (status, limit))))
        finally:
            connection.close()
