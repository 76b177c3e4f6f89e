"""Kills on SQLite: bounded statements in the reader threads."""

from collections.abc import Sequence
from typing import Any

from switchyard.adapters.sqlite import rows
from switchyard.adapters.sqlite.connections import Connections
from switchyard.adapters.sqlite.statements import ACTIVE_KILLS
from switchyard.adapters.tables import KILLS
from switchyard.domain.ids import KillId, OrderId
from switchyard.domain.risk.kills import Kill
from switchyard.ports.journal import PAGE_MAX, SEQ_LIMIT

_ORDERS = """
SELECT listed.order_id FROM kill_orders AS listed CROSS JOIN orders ON orders.order_id = listed.order_id
WHERE listed.kill_id = ?1 AND listed.order_id > ?2
AND (NOT ?3 OR orders.status NOT IN ('FILLED', 'CANCELED', 'REJECTED', 'EXPIRED'))
ORDER BY listed.order_id LIMIT ?4
"""


class SqliteKills:
    """ports.kills.Kills on SQLite."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def active(self) -> Sequence[Kill]:
        """All active kills, the oldest first."""
        return await self._kills(f"{ACTIVE_KILLS} ORDER BY seq", ())

    async def find(self, kill_id: KillId) -> Kill | None:
        """One kill."""
        found = await self._kills(f"SELECT {KILLS.column_list} FROM kills WHERE kill_id = ?", (kill_id,))
        return found[0] if found else None

    async def newest(self, *, before: int | None = None, limit: int) -> Sequence[Kill]:
        """One page of all kills, newest first."""
        sql = f"SELECT {KILLS.column_list} FROM kills WHERE seq < ? ORDER BY seq DESC LIMIT ?"
        return await self._kills(sql, (SEQ_LIMIT if before is None else before, min(limit, PAGE_MAX)))

    async def orders_of(
        self, kill_id: KillId, *, after: OrderId | None = None, only_open: bool = False, limit: int
    ) -> Sequence[OrderId]:
        """One page of the orders that were open when the kill was set, sorted by id."""
        values = (kill_id, after or "", only_open, min(limit, PAGE_MAX))
        found: list[Any] = await self._connections.read(
            lambda connection: connection.execute(_ORDERS, values).fetchall()
        )
        return [OrderId(order_id) for (order_id,) in found]

    async def _kills(self, sql: str, values: tuple[Any, ...]) -> list[Kill]:
        return await self._connections.read(lambda connection: list(map(rows.kill, connection.execute(sql, values))))
