"""Orders by strategy on SQLite: bounded statements in the reader threads."""

from datetime import datetime
from typing import Any

import apsw

from switchyard.adapters.sqlite.connections import Connections
from switchyard.adapters.sqlite.rows import json_array
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.lines import stamp
from switchyard.domain.strategies.metrics import READ_EVENTS, OrderRow, StrategyOrder, Window, id_range, strategy_orders
from switchyard.ports.strategies import ORDERS_MAX

_ORDERS = """
SELECT order_id, accepted_at, status, reason FROM orders INDEXED BY orders_of_strategy
WHERE strategy IS NOT NULL AND account_id = ?1 AND strategy = ?2 AND order_id > ?3 AND order_id < ?4
AND accepted_at >= ?5 AND accepted_at < ?6
ORDER BY order_id LIMIT ?7
"""
_EVENTS = """
SELECT order_id, type, data FROM events
WHERE order_id IS NOT NULL AND order_id IN (SELECT value FROM json_each(?1))
AND type IN (SELECT value FROM json_each(?2))
"""


class SqliteStrategyOrders:
    """ports.strategy_orders.StrategyOrders on SQLite."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def page(
        self, account: AccountId, strategy: str, window: Window, after: OrderId | None, limit: int
    ) -> list[StrategyOrder]:
        """A page of the strategy's orders in the window."""
        first, last = id_range(window)
        values = (
            account,
            strategy,
            max(first, after or first),
            last,
            stamp(window.start),
            stamp(window.end),
            min(limit, ORDERS_MAX),
        )

        def read(connection: apsw.Connection) -> list[StrategyOrder]:
            found = [
                OrderRow(order_id, datetime.fromisoformat(accepted_at), status, reason)
                for order_id, accepted_at, status, reason in connection.execute(_ORDERS, values)
            ]
            ids = json_array([row.order_id for row in found])
            events: list[Any] = connection.execute(_EVENTS, (ids, json_array(READ_EVENTS))).fetchall()
            return strategy_orders(found, events)

        return await self._connections.read(read)
