"""Streams: a reader of the journal that tells subscribers what happened, with no gap and no repeat.

A message's id is the journal number of its event, so any gateway can continue a stream that another one began.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Literal
from urllib.parse import quote

import msgspec
import structlog

from switchyard.domain.errors import QueueFull, Unavailable
from switchyard.domain.events import JournalEvent, encode
from switchyard.domain.ids import AccountId, OrderId
from switchyard.flow.wake import Wake
from switchyard.ports.journal import PAGE_MAX, Journal
from switchyard.ports.queries import Queries
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

SHARD = 0
# Small: a page is dispatched without a pause, and at worst every subscriber holds one until its reader takes it.
STREAM_PAGE = 200
# Each subscriber costs a connection and, at worst, a full queue.
SUBSCRIBERS_MAX = 10_000
# Other processes' commits send no nudge; their events wait at most this long.
POLL_SECONDS = 0.25
# Reading competes with accepting orders: a short pause makes one page of many small ones.
LINGER_SECONDS = 0.005
RETRY_SECONDS = 1.0

Scope = Literal["account", "order"]
Topic = tuple[Scope, str]
EndReason = Literal["slow", "closing"]


class Message(msgspec.Struct, frozen=True):
    """One message of a stream; `id` is where to continue after it."""

    id: int
    event: str
    data: bytes


class _OrderData(msgspec.Struct):
    order: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _OrderLine(msgspec.Struct):
    data: _OrderData


class _ReportLine(msgspec.Struct):
    data: msgspec.Raw


_order_line = msgspec.json.Decoder(_OrderLine)
_report_line = msgspec.json.Decoder(_ReportLine)


def message_of(event: JournalEvent) -> Message | None:
    """What a stream says of an event, cut out of its line byte for byte; nothing for events of no order."""
    line = event.text + "}"
    if event.type == "ExecutionReport":
        return Message(event.seq, "execution_report", bytes(_report_line.decode(line).data))
    order = _order_line.decode(line).data.order
    return None if order is msgspec.UNSET else Message(event.seq, "order_update", bytes(order))


class Subscription:
    """One reader's place in the stream of an account or an order; `StreamHub.subscribe` makes it."""

    def __init__(self, hub: "StreamHub", topic: Topic, queue_capacity: int) -> None:
        self.topic = topic
        self.start = 0
        """Messages above this number arrive by themselves; those up to it have to be looked up."""
        self.place = 0
        """The number of the newest message that was handed out, or that the reader said it has."""
        self.ended: asyncio.Future[EndReason] = asyncio.get_running_loop().create_future()
        self._hub = hub
        self._queue: deque[Message] = deque()
        self._queue_capacity = queue_capacity
        self._arrived = asyncio.Event()

    async def batches(self, silence_seconds: float) -> AsyncGenerator[list[Message], None]:
        """What the reader missed, then what happens; an empty batch after so many seconds of nothing new."""
        async for batch in self._hub.missed(self):
            if self.ended.done():
                return
            self.place = batch[-1].id
            yield batch
        while not self.ended.done():
            if batch := list(self._take()):
                self.place = batch[-1].id
                yield batch
            elif not self._queue:
                self._arrived.clear()
                try:
                    async with asyncio.timeout(silence_seconds):
                        await self._arrived.wait()
                except TimeoutError:
                    yield []

    def _take(self) -> Iterator[Message]:
        for _ in range(min(len(self._queue), STREAM_PAGE)):
            message = self._queue.popleft()
            # The queue fills from the moment of registration, so its beginning may have been looked up as well.
            if message.id > self.place:
                yield message

    def offer(self, message: Message) -> bool:
        """Queue a message; False when that was one too many and the reader is cut off."""
        if self.ended.done():
            return True
        if len(self._queue) >= self._queue_capacity:
            self.end("slow")
            return False
        self._queue.append(message)
        self._arrived.set()
        return True

    def end(self, reason: EndReason) -> None:
        """No more messages; the reader may continue from its place in another subscription."""
        if not self.ended.done():
            self.ended.set_result(reason)
            self._queue.clear()
            self._arrived.set()


class StreamHub:
    """Reads the journal once and fans it out; reads nothing while nobody listens."""

    def __init__(
        self,
        journal: Journal,
        queries: Queries,
        *,
        buffer_size: int = 1_000,
        queue_capacity: int = 10_000,
        behind_max: int = 10_000,
        replays_max: int = 8,
        subscribers_max: int = SUBSCRIBERS_MAX,
        metrics: Metrics | None = None,
    ) -> None:
        self.subscribers = 0
        self._journal = journal
        self._queries = queries
        self._buffer_size = buffer_size
        self._queue_capacity = queue_capacity
        self._behind_max = behind_max
        self._subscribers_max = subscribers_max
        self._metrics = metrics or Metrics()
        self._replay_slots = asyncio.Semaphore(replays_max)
        self._listeners: dict[Topic, set[Subscription]] = {}
        self._listening = asyncio.Event()
        self._closed = False
        # Awake, the hub has dispatched all up to `_position`, and the ring has every message above `_floor`.
        self._awake = False
        self._position = 0
        self._floor = 0
        self._ring: deque[tuple[Topic, Topic, Message]] = deque()

    async def run(self, wake: Wake) -> None:
        """Dispatch until closed."""
        try:
            while not self._closed:
                await self._listening.wait()
                try:
                    count = await self.run_once()
                    if count == 0:
                        await wake.wait(POLL_SECONDS)
                    elif count < STREAM_PAGE:
                        await asyncio.sleep(LINGER_SECONDS)
                except Unavailable as error:
                    log.warning("streams wait for the journal", error=str(error))
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            # A stream that nobody feeds must not look alive: its reader comes back and continues.
            self._end_all()

    async def run_once(self) -> int:
        """Dispatch the next page; how many events it had."""
        position = self._position
        if not self._awake:
            return 0
        events = await self._journal.read(SHARD, position, STREAM_PAGE)
        if not self._awake or self._position != position:
            return 0  # everybody left during the read, and the hub may have begun anew elsewhere
        for event in events:
            self._dispatch(event)
            self._position = event.seq
        return len(events)

    @asynccontextmanager
    async def subscribe(self, scope: Scope, id: str, last_event_id: int | None = None) -> AsyncIterator[Subscription]:
        """Listen to an account or an order, continuing after `last_event_id` where that is given."""
        if self._closed:
            raise QueueFull("the streams are closing")
        if self.subscribers >= self._subscribers_max:
            raise QueueFull("too many streams are open")
        subscription = Subscription(self, (scope, id), self._queue_capacity)
        self._listeners.setdefault(subscription.topic, set()).add(subscription)
        self._count(1)
        try:
            if not self._awake:
                head = await self.head()
                if not self._awake:  # another subscriber may have been faster
                    self._awake, self._position, self._floor = True, head, head
                    self._listening.set()
            subscription.start = self._position
            subscription.place = self._position if last_event_id is None else last_event_id
            yield subscription
        finally:
            self._forget(subscription)

    async def head(self) -> int:
        """The journal's newest number."""
        return (await self._journal.head(SHARD)).seq

    async def missed(self, subscription: Subscription) -> AsyncIterator[list[Message]]:
        """The messages from the reader's last one up to where its queue begins, or the advice to start afresh."""
        topic, last, start = subscription.topic, subscription.place, subscription.start
        if last > start:
            # Perhaps another gateway is ahead of this one; only the journal knows whether the number exists.
            if last > await self.head():
                yield [self._resync(subscription, last)]
        elif last >= self._floor:
            found = [message for *topics, message in self._ring if last < message.id <= start and topic in topics]
            if len(found) > self._behind_max:
                yield [self._resync(subscription, last)]
                return
            for first in range(0, len(found), STREAM_PAGE):
                yield found[first : first + STREAM_PAGE]
        elif await self._too_far(subscription, last):
            yield [self._resync(subscription, last)]
        else:
            async for page in self._pages(subscription, last, STREAM_PAGE):
                if messages := [message for message in map(message_of, page) if message is not None]:
                    yield messages

    def close(self) -> None:
        """End every stream and take no more."""
        self._closed = True
        self._end_all()
        self._listening.set()

    def _dispatch(self, event: JournalEvent) -> None:
        message = message_of(event)
        if message is None:
            return
        account: Topic = ("account", event.account_id)
        order: Topic = ("order", event.order_id or "")
        self._ring.append((account, order, message))
        while len(self._ring) > self._buffer_size:
            self._floor = self._ring.popleft()[-1].id
        for topic in (account, order):
            for subscription in self._listeners.get(topic, ()):
                if not subscription.offer(message):
                    self._metrics.stream_drops.inc()

    async def _too_far(self, subscription: Subscription, last: int) -> bool:
        async with self._replay_slots:
            oldest = await self._journal.read(SHARD, 0, 1)
        if oldest and oldest[0].seq > last + 1:
            return True
        if subscription.start - last <= self._behind_max:
            return False
        behind = 0
        # Counted before anything is sent, since the advice to start afresh is no use after ten thousand messages.
        async for page in self._pages(subscription, last, PAGE_MAX):
            behind += len(page)
            if behind > self._behind_max:
                return True
        return False

    async def _pages(self, subscription: Subscription, after: int, size: int) -> AsyncIterator[list[JournalEvent]]:
        """The stream's events up to where its queue begins; a slow reader holds no slot between two pages."""
        scope, id = subscription.topic
        while after < subscription.start:
            async with self._replay_slots:
                if scope == "account":
                    page = await self._queries.events_after(after, account_id=AccountId(id), limit=size)
                else:
                    page = await self._queries.events_after(after, order_id=OrderId(id), limit=size)
            yield [event for event in page if event.seq <= subscription.start]
            if len(page) < size:
                return
            after = page[-1].seq

    def _resync(self, subscription: Subscription, last: int) -> Message:
        """Tell the reader to look up what happened before the place at which the stream goes on."""
        scope, id = subscription.topic
        data = {
            "scope": scope,
            "id": id,
            "lastEventId": last,
            "oldestAvailableId": subscription.start,
            "eventsEndpoint": f"/{scope}s/{quote(id, safe='')}/events",
        }
        return Message(subscription.start, "resync_required", encode(data))

    def _forget(self, subscription: Subscription) -> None:
        listeners = self._listeners[subscription.topic]
        listeners.remove(subscription)
        if not listeners:
            del self._listeners[subscription.topic]
        self._count(-1)
        if not self.subscribers:
            self._awake = False
            self._ring.clear()
            if not self._closed:
                self._listening.clear()

    def _count(self, change: int) -> None:
        self.subscribers += change
        self._metrics.stream_readers.set(self.subscribers)

    def _end_all(self) -> None:
        for listeners in self._listeners.values():
            for subscription in listeners:
                subscription.end("closing")
