"""The port that reads every order, for the state digest."""

from collections.abc import AsyncIterator
from typing import Protocol

from switchyard.domain.orders import Order


class OrderDump(Protocol):
    """All orders in one snapshot."""

    def all_orders(self) -> AsyncIterator[Order]:
        """Yield every order, sorted by the bytes of its id."""
        ...
