"""`submit_many` for a venue whose requests carry one order each: it calls `submit` and keeps no state."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

import structlog

from switchyard.domain.orders.order import Order
from switchyard.ports.venue import Ambiguous, OnDeparture, SendOutcome, ignore_departure

log = structlog.get_logger()


class OneByOne(ABC):
    """Base of adapters with `Capabilities.batch_max` 1.

    `submit_many` also takes more orders, each in a request of its own; it may then exceed `SEND_LIMIT`.
    """

    @abstractmethod
    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        """Send one order."""

    async def submit_many(
        self, orders: Sequence[Order], on_departure: OnDeparture = ignore_departure
    ) -> list[SendOutcome]:
        """Send each order as soon as the one before has departed; returns the outcomes in the same order."""
        if len(orders) == 1:
            return [await self._submit_one(orders[0], on_departure)]
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
            return await self._submit_one(order, departed.set)
        finally:
            departed.set()  # an adapter may not detect the departure; the next order then waits for the outcome

    async def _submit_one(self, order: Order, on_departure: OnDeparture) -> SendOutcome:
        try:
            return await self.submit(order, on_departure)
        except Exception as error:
            # A defect of the adapter: the venue may have the order. The outcomes of the others must not be lost.
            log.exception("venue_adapter_failed", order_id=order.order_id, venue=order.venue)
            return Ambiguous("ADAPTER_FAILED", repr(error))
