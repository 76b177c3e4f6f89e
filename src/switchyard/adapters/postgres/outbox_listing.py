"""Outbox rows for operators, read on a separate connection."""

from collections.abc import Sequence

from switchyard.adapters.postgres import rows
from switchyard.adapters.postgres.connection import connect
from switchyard.adapters.tables import OUTBOX_ORDERS
from switchyard.domain.outbox import OutboxRow
from switchyard.ports.journal import PAGE_MAX

_SELECT = f"SELECT {OUTBOX_ORDERS.column_list} FROM outbox_orders WHERE status = $1 ORDER BY seq LIMIT $2"


class PostgresOutboxListing:
    """ports.outbox_listing.OutboxListing on PostgreSQL."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def rows(self, status: str, limit: int) -> Sequence[OutboxRow]:
        """Rows of one status, oldest first."""
        connection = await connect(self._url)
        try:
            records = await connection.fetch(_SELECT, status, min(limit, PAGE_MAX))
            return [rows.outbox_row(record) for record in records]
        finally:
            await connection.close()
