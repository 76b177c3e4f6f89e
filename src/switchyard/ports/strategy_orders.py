"""The strategy order port: the orders of one strategy of an account, as a recheck looks at them. Reads only."""

from typing import Protocol

from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.strategies.metrics import StrategyOrder, Window

# Bounds the memory of one read.
ORDERS_MAX = 500


class StrategyOrders(Protocol):
    """The journal's orders by strategy."""

    async def page(
        self, account: AccountId, strategy: str, window: Window, after: OrderId | None, limit: int
    ) -> list[StrategyOrder]:
        """Return the orders that arrived in the window, accepted or rejected, by id, after this one.

        At most ORDERS_MAX, each with its doubt and its arrival quote as they are now.
        """
        ...
