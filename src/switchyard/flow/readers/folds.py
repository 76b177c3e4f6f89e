"""Stream messages: folds the events of orders into whole snapshots and reports, and keeps the latest for new
subscribers.

Reads the earlier events of an order that it does not have yet; writes nothing.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import msgspec

from switchyard.domain.ids import OrderId
from switchyard.domain.journal import replay
from switchyard.domain.journal.events import NEW_ORDER_EVENTS, ORDER_EVENTS, JournalEvent, encode
from switchyard.domain.journal.facts import ReportFact
from switchyard.domain.journal.lines import (
    data_of,
    decode_accepted_fact,
    decode_order_fact,
    decode_rejected_fact,
    decode_report_fact,
)
from switchyard.domain.orders.order import Order, snapshot
from switchyard.ports.journal import PAGE_MAX
from switchyard.ports.queries import Queries

if TYPE_CHECKING:
    from switchyard.flow.readers.stream import Subscription


Scope = Literal["account", "order"]
Topic = tuple[Scope, str]


class Message(msgspec.Struct, frozen=True):
    """One message of a stream; `id` is the journal number to continue after, `data` is JSON."""

    id: int
    event: str
    data: bytes


def has_message(event: JournalEvent) -> bool:
    """Whether streams show the event: it changed an order, or is a report on one."""
    return event.type in ORDER_EVENTS or event.type == "ExecutionReport"


def signal_of(event: JournalEvent) -> Message:
    """A message without data, for subscribers that only wait for something to happen."""
    return Message(event.seq, "execution_report" if event.type == "ExecutionReport" else "order_update", b"")


def resync_message(topic: Topic, last_event_id: int, start: int) -> Message:
    """Tell the subscriber to load events up to `start` from the events endpoint; the stream continues after `start`."""
    scope, id = topic
    data = {
        "scope": scope,
        "id": id,
        "lastEventId": last_event_id,
        "oldestAvailableId": start,
        "eventsEndpoint": f"/{scope}s/{quote(id, safe='')}/events",
    }
    return Message(start, "resync_required", encode(data))


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


# Trimming looks at every subscriber, so it waits until this many messages are stored.
TRIM_MIN = 64
# A full backlog is trimmed after another sixteenth of its capacity, not after every message.
TRIM_SHARE = 16


class Backlog:
    """Numbers messages from 0 on; a subscriber has the number of the message that it reads next."""

    def __init__(self, capacity: int) -> None:
        self.subscriptions: set[Subscription] = set()
        self.waiting: set[Subscription] = set()
        """Subscribers that have read everything and wait for their turn."""
        self.urgent: set[Subscription] = set()
        """Subscribers that have read everything and are woken with the next message: requests wait for them."""
        self.readers = 0
        """Subscribers that need the data of messages."""
        self._capacity = capacity
        self._messages: list[Message] = []
        self._first = 0
        self._trim_size = self._next_trim_size()

    @property
    def end(self) -> int:
        """The number that the next message gets."""
        return self._first + len(self._messages)

    def add(self, message: Message) -> int:
        """Store a message and return how many subscribers were ended because they are too far behind."""
        self._messages.append(message)
        return self._trim() if len(self._messages) >= self._trim_size else 0

    def read(self, start: int, limit: int) -> list[Message]:
        """Return up to `limit` messages from a number on."""
        offset = start - self._first
        assert offset >= 0, "a message was dropped before its last subscriber read it"
        return self._messages[offset : offset + limit]

    def _trim(self) -> int:
        """End the subscribers that are more than the capacity behind; drop what all others have read."""
        floor = self.end - self._capacity
        slow = [one for one in self.subscriptions if one.next_number < floor and not one.ended.done()]
        for subscription in slow:
            subscription.end("slow")
        reading = [one.next_number for one in self.subscriptions if not one.ended.done()]
        first = min(reading, default=self.end)
        del self._messages[: first - self._first]
        self._first = first
        self._trim_size = self._next_trim_size()
        return len(slow)

    def _next_trim_size(self) -> int:
        full = self._capacity + max(1, self._capacity // TRIM_SHARE)
        return min(max(TRIM_MIN, 2 * len(self._messages)), full)
