"""Kills on PostgreSQL: each query is one bounded statement."""

from collections.abc import Sequence

from switchyard.adapters.postgres import rows
from switchyard.adapters.postgres.reader import Reader
from switchyard.adapters.tables import KILLS
from switchyard.domain.ids import KillId, OrderId
from switchyard.domain.risk.kills import Kill
from switchyard.ports.journal import PAGE_MAX, SEQ_LIMIT

_KILLS = f"SELECT {KILLS.column_list} FROM kills"
_ORDERS = """
SELECT listed.order_id FROM kill_orders AS listed JOIN orders USING (order_id)
WHERE listed.kill_id = $1 AND listed.order_id > $2 AND (NOT $3::boolean OR NOT is_final(orders.status))
ORDER BY listed.order_id LIMIT $4
"""


class PostgresKills:
    """ports.kills.Kills on PostgreSQL."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def active(self) -> Sequence[Kill]:
        """All active kills, the oldest first."""
        return [rows.kill(row) for row in await self._reader.rows(f"{_KILLS} WHERE cleared_at IS NULL ORDER BY seq")]

    async def find(self, kill_id: KillId) -> Kill | None:
        """One kill."""
        found = await self._reader.rows(f"{_KILLS} WHERE kill_id = $1", kill_id)
        return rows.kill(found[0]) if found else None

    async def newest(self, *, before: int | None = None, limit: int) -> Sequence[Kill]:
        """One page of all kills, newest first."""
        end = SEQ_LIMIT if before is None else before
        sql = f"{_KILLS} WHERE seq < $1 ORDER BY seq DESC LIMIT $2"
        return [rows.kill(row) for row in await self._reader.rows(sql, end, min(limit, PAGE_MAX))]

    async def orders_of(
        self, kill_id: KillId, *, after: OrderId | None = None, only_open: bool = False, limit: int
    ) -> Sequence[OrderId]:
        """One page of the orders that were open when the kill was set, sorted by id."""
        found = await self._reader.rows(_ORDERS, kill_id, after or "", only_open, min(limit, PAGE_MAX))
        return [OrderId(record["order_id"]) for record in found]
