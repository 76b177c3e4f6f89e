"""Wait for what the broker does with an order of `/do/order`.

Reads orders and follows the order's event stream; writes only the expiry of an order that missed its send deadline.
"""

import contextlib
from datetime import datetime, timedelta

from switchyard.domain import decisions
from switchyard.domain.errors import QueueFull
from switchyard.domain.ids import OrderId
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.keys import is_lost_key_alive
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState
from switchyard.flow.commit.sequencer import Commit, decide
from switchyard.flow.readers.stream import StreamHub
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Queries

# The specification's broker time-outs by time in force.
BROKER_SECONDS_MAX = {"IOC": 2.5, "FOK": 5.0, "GTC": 5.0}
# Added to the broker's time-out for the queue, the commit and the report.
MARGIN_SECONDS = 0.5
# The stream wakes the request; polling at this interval covers a lost wake-up.
POLL_SECONDS = 0.5


class BrokerOutcome:
    """Reads an order once its outcome at the broker is known."""

    def __init__(
        self,
        *,
        journal: Journal,
        commit: Commit,
        queries: Queries,
        hub: StreamHub,
        clock: Clock,
        key_ttl: timedelta,
        restored_at: datetime | None,
    ) -> None:
        """Until every key from before a restore has expired, only a worker expires orders.

        After a restore, an order that was not sent from here may have been executed by the lost history under the same
        client order id. A worker knows that, once it has read the venue.
        """
        self._journal = journal
        self._commit = commit
        self._queries = queries
        self._hub = hub
        self._clock = clock
        self._key_ttl = key_ttl
        self._restored_at = restored_at

    async def order(self, order_id: OrderId) -> Order:
        """Return the order as it is now."""
        order = await self._queries.order(order_id)
        assert order is not None, "a key and its order are written together, and orders are never removed"
        return order

    async def state(self, order_id: OrderId) -> OrderState:
        """Return the order with its outbox rows."""
        return (await self._journal.load([order_id]))[order_id]

    async def wait(self, order_id: OrderId, time_in_force: str) -> Order:
        """Return the order when the broker's outcome is known, or when the broker's time is over."""
        deadline = self._clock.monotonic() + BROKER_SECONDS_MAX[time_in_force] + MARGIN_SECONDS
        try:
            async with self._hub.subscribe("order", order_id, urgent=True) as subscription:
                order = await self.order(order_id)
                async with contextlib.aclosing(subscription.batches(POLL_SECONDS)) as batches:
                    while not _is_known(order) and self._clock.monotonic() < deadline:
                        if await anext(batches, None) is None:
                            break  # the hub closes because the process stops
                        order = await self.order(order_id)
        except QueueFull:
            order = await self.order(order_id)  # too many subscribers: answer with the current state
        return await self.expired_if_late(order)

    async def expired_if_late(self, order: Order) -> Order:
        """Expire an order that was not sent before its deadline; returns the order's new state.

        Usually the worker does this. Without a live worker, or with the venue down, the request has to, so that its
        key can be reused.
        """

        def decision(state: OrderState) -> Change | None:
            if not self._is_late(state.order):
                return None  # a worker has sent or ended the order meanwhile
            return decisions.record_expired(state, state.row("new", 1), "BROKER_DOWN", self._clock.now())

        if not self._is_late(order):
            return order
        change = await decide(self._journal, self._commit, order.order_id, decision)
        return await self.order(order.order_id) if change is None else change.orders[0]

    def _is_late(self, order: Order) -> bool:
        now = self._clock.now()
        if is_lost_key_alive(self._restored_at, self._key_ttl, now, self._clock.jumped_at):
            return False
        return order.status == "ACCEPTED" and decisions.is_past_deadline(order, now)


def _is_known(order: Order) -> bool:
    """Whether the broker's outcome is known; for a GTC order, whether the broker has the order."""
    if is_final(order.status) or order.status == "UNKNOWN":
        return True
    return order.time_in_force == "GTC" and order.status not in ("ACCEPTED", "SENDING")
