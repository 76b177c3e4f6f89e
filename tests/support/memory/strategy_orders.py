"""Orders by strategy in memory: a plain scan, for tests with few rows."""

from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.lines import data_text
from switchyard.domain.strategies.metrics import READ_EVENTS, OrderRow, StrategyOrder, Window, strategy_orders
from switchyard.ports.strategies import ORDERS_MAX
from tests.support.memory.journal import MemoryJournal


class MemoryStrategyOrders:
    """ports.strategies.StrategyOrders in memory."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal

    async def page(
        self, account: AccountId, strategy: str, window: Window, after: OrderId | None, limit: int
    ) -> list[StrategyOrder]:
        """A page of the strategy's orders in the window."""
        matching = sorted(
            (
                order
                for order in self._journal.orders.values()
                if (order.account_id, order.strategy) == (account, strategy)
                and order.order_id > (after or "")
                and window.covers(order.accepted_at)
            ),
            key=lambda order: order.order_id,
        )[: min(limit, ORDERS_MAX)]
        found = [OrderRow(order.order_id, order.accepted_at, order.status, order.reason) for order in matching]
        ids = {row.order_id for row in found}
        return strategy_orders(
            found,
            [
                (event.order_id, event.type, data_text(event))
                for event in self._journal.events.get(0, [])
                if event.order_id in ids and event.type in READ_EVENTS
            ],
        )
