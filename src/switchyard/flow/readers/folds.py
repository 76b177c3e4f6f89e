"""Folds the events of orders into stream messages: whole snapshots and reports, the same at every gateway.

Reads the earlier events of an order that it does not have yet; writes nothing. `StreamHub` has one for the live events,
and every replay has its own, because a fold cannot go back.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from switchyard.domain.ids import OrderId
from switchyard.domain.journal import replay
from switchyard.domain.journal.events import NEW_ORDER_EVENTS, JournalEvent, encode
from switchyard.domain.journal.facts import ReportFact
from switchyard.domain.journal.lines import (
    data_of,
    decode_accepted_fact,
    decode_order_fact,
    decode_rejected_fact,
    decode_report_fact,
)
from switchyard.domain.orders.order import Order, snapshot
from switchyard.flow.readers.messages import Message, has_message
from switchyard.ports.journal import PAGE_MAX
from switchyard.ports.queries import Queries

# About 2 KB each. An order that was dropped is loaded again with its next event.
ORDERS_MAX = 10_000


class OrderFold:
    """One order as its events so far have made it."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._report: ReportFact | None = None
        """The last report, until the `OrderUpdated` that shows its effect."""

    def apply(self, event: JournalEvent) -> None:
        """Apply the order's next event after its acceptance."""
        if event.type == "ExecutionReport":
            self._report = decode_report_fact(data_of(event))
            return
        change = decode_order_fact(data_of(event)).order
        # A fold that started at the order's row may be ahead of the events.
        if change.version > self.order.version:
            assert change.version == self.order.version + 1, "an event of the order is missing"
            self.order = replay.changed(self.order, change, self._report)
        self._report = None

    def message(self, event: JournalEvent) -> Message:
        """The message of the event that was applied last."""
        if self._report is not None:
            return Message(event.seq, "execution_report", encode(replay.reported(self.order, self._report)))
        return Message(event.seq, "order_update", encode(snapshot(self.order)))


class OrderFolds:
    """The folds of the orders that were used last."""

    def __init__(self, queries: Queries, orders_max: int = ORDERS_MAX) -> None:
        self._queries = queries
        self._orders_max = orders_max
        self._folds: OrderedDict[OrderId, OrderFold] = OrderedDict()
        """The one that was not used for the longest time comes first."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no order, as before its first event."""
        return not self._folds

    async def messages(self, events: Iterable[JournalEvent]) -> list[Message]:
        """The messages of the next events, which must include all events of their orders from here on."""
        shown = [event for event in events if has_message(event)]
        self.add(await self.load(self.missing(shown)))
        messages = [self.message(event) for event in shown]
        self.trim()
        return messages

    def missing(self, events: Iterable[JournalEvent]) -> dict[OrderId, int]:
        """The orders of these events that have to be loaded, each with the number of its first event among them."""
        first: dict[OrderId, JournalEvent] = {}
        for event in events:
            assert event.order_id is not None, "every message is about an order"
            if event.order_id not in self._folds:
                first.setdefault(event.order_id, event)
        return {order_id: event.seq for order_id, event in first.items() if event.type not in NEW_ORDER_EVENTS}

    async def load(self, wanted: Mapping[OrderId, int]) -> dict[OrderId, OrderFold]:
        """The orders as they were before these numbers; the caller adds them if they are still wanted."""
        return {order_id: await self._load(order_id, seq) for order_id, seq in wanted.items()}

    def add(self, loaded: Mapping[OrderId, OrderFold]) -> None:
        """Continue with these orders."""
        self._folds.update(loaded)

    def message(self, event: JournalEvent) -> Message:
        """Apply an event and return its message; its order must not be missing."""
        assert event.order_id is not None, "every message is about an order"
        if event.type in NEW_ORDER_EVENTS:
            order_fold = self._folds[event.order_id] = _accepted(event)
        else:
            order_fold = self._folds[event.order_id]
            order_fold.apply(event)
        self._folds.move_to_end(event.order_id)
        return order_fold.message(event)

    def forget(self, order_id: OrderId) -> None:
        """Drop an order, because an event of it was not applied."""
        self._folds.pop(order_id, None)

    def trim(self) -> None:
        """Drop the orders beyond the bound; not within a page, which may need them."""
        while len(self._folds) > self._orders_max:
            self._folds.popitem(last=False)

    def clear(self) -> None:
        """Drop all orders."""
        self._folds.clear()

    async def _load(self, order_id: OrderId, before: int) -> OrderFold:
        page = await self._earlier(order_id, 0, before)
        if not page or page[0].type not in NEW_ORDER_EVENTS:
            # The beginning is archived. The row may be newer than the event; its version tells.
            order = await self._queries.order(order_id)
            assert order is not None, "orders are never removed"
            return OrderFold(order)
        order_fold, rest = _accepted(page[0]), page[1:]
        while True:
            for event in rest:
                if has_message(event):
                    order_fold.apply(event)
            if len(page) < PAGE_MAX:
                return order_fold
            page = rest = await self._earlier(order_id, page[-1].seq, before)

    async def _earlier(self, order_id: OrderId, after: int, before: int) -> Sequence[JournalEvent]:
        page = await self._queries.events_after(after, order_id=order_id, limit=PAGE_MAX)
        return [event for event in page if event.seq < before]


def _accepted(event: JournalEvent) -> OrderFold:
    assert event.order_id is not None, "a new order has an id"
    decode = decode_accepted_fact if event.type == "OrderAccepted" else decode_rejected_fact
    fact = decode(data_of(event))
    return OrderFold(replay.accepted(event.account_id, event.order_id, fact))
