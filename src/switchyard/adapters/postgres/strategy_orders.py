"""Orders by strategy on PostgreSQL: bounded statements."""

from switchyard.adapters.postgres.reader import Reader
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.strategies.metrics import READ_EVENTS, OrderRow, StrategyOrder, Window, id_range, strategy_orders
from switchyard.ports.strategies import ORDERS_MAX

_ORDERS = """
SELECT order_id, accepted_at, status, reason FROM orders
WHERE strategy IS NOT NULL AND account_id = $1 AND strategy = $2 AND order_id > $3 AND order_id < $4
AND accepted_at >= $5 AND accepted_at < $6
ORDER BY order_id LIMIT $7
"""
_EVENTS = "SELECT order_id, type, data FROM events WHERE order_id = ANY ($1::text[]) AND type = ANY ($2::text[])"


class PostgresStrategyOrders:
    """ports.strategy_orders.StrategyOrders on PostgreSQL."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def page(
        self, account: AccountId, strategy: str, window: Window, after: OrderId | None, limit: int
    ) -> list[StrategyOrder]:
        """A page of the strategy's orders in the window."""
        first, last = id_range(window)
        start = max(first, after or first)
        records = await self._reader.rows(
            _ORDERS, account, strategy, start, last, window.start, window.end, min(limit, ORDERS_MAX)
        )
        found = [OrderRow(*record) for record in records]
        events = await self._reader.rows(_EVENTS, [row.order_id for row in found], list(READ_EVENTS))
        return strategy_orders(found, [(record[0], record[1], record[2]) for record in events])
