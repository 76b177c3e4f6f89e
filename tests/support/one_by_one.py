"""`submit_many` for a venue, or the wrapper of one, whose `submit` belongs to a test."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from switchyard.domain.orders.order import Order
from switchyard.ports.venue import OnDeparture, SendOutcome, ignore_departure


class OneByOne(ABC):
    """Base of venues whose requests carry one order each, as those of `Bridge` do."""

    @abstractmethod
    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        """Send one order."""

    async def submit_many(
        self, orders: Sequence[Order], on_departure: OnDeparture = ignore_departure
    ) -> list[SendOutcome]:
        """Send each order as soon as the one before has departed; return the outcomes in the same order."""
        if len(orders) == 1:
            return [await self.submit(orders[0], on_departure)]
        async with asyncio.TaskGroup() as group:
            sends = []
            for order in orders:
                departed = asyncio.Event()
                sends.append(group.create_task(self._submit_next(order, departed)))
                await departed.wait()
            on_departure()
        return [send.result() for send in sends]

    async def _submit_next(self, order: Order, departed: asyncio.Event) -> SendOutcome:
        try:
            return await self.submit(order, departed.set)
        finally:
            departed.set()
