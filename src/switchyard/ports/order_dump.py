"""The port that reads every order, for the state digest and the check of what is kept beside the orders."""

from collections.abc import AsyncIterator
from typing import Protocol

from switchyard.domain.ids import OrderId
from switchyard.domain.orders.order import Order
from switchyard.domain.risk.exposure import TotalsKey


class OrderDump(Protocol):
    """All orders in one snapshot."""

    def all_orders(self) -> AsyncIterator[Order]:
        """Yield every order, sorted by the bytes of its id."""
        ...

    async def wrong_totals(self) -> list[TotalsKey]:
        """The accounts, symbols and currencies whose kept totals are not those of their open orders, sorted."""
        ...

    async def wrong_unfinished(self) -> list[OrderId]:
        """Orders that are wrongly kept among the unfinished ones, or are missing there, sorted; a page at most."""
        ...
