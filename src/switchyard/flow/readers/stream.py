"""Fans journal events out to subscribers, without gaps and without repeats, in turns.

A message's id is the journal number of its event, so any gateway can continue a stream that another one started.
Reads the journal; writes nothing.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

import structlog

from switchyard.domain.errors import QueueFull, Unavailable
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.events import JournalEvent
from switchyard.flow.clock import Wake
from switchyard.flow.readers.folds import (
    ORDERS_MAX,
    Backlog,
    Message,
    OrderFolds,
    Scope,
    Topic,
    has_message,
    resync_message,
    signal_of,
)
from switchyard.ports.journal import PAGE_MAX, Journal
from switchyard.ports.queries import Queries
from switchyard.telemetry.metrics import Metrics

EndReason = Literal["slow", "closing"]


class Subscription:
    """A subscriber's position in the stream of an account or an order; created by `StreamHub.subscribe`."""

    def __init__(
        self,
        topic: Topic,
        backlog: Backlog,
        *,
        missed: "Callable[[Subscription], AsyncIterator[list[Message]]]",
        page_size: int,
        urgent: bool,
    ) -> None:
        self.topic = topic
        self.urgent = urgent
        self.start = 0
        """Messages above this number arrive in the backlog; those up to it are read from the ring or the journal."""
        self.place = 0
        """The number of the newest message that was returned, or the subscriber's own last event id."""
        self.next_number = backlog.end
        """The backlog's number of the message to read next."""
        self.ended: asyncio.Future[EndReason] = asyncio.get_running_loop().create_future()
        self._backlog = backlog
        self._waiting = backlog.urgent if urgent else backlog.waiting
        self._missed = missed
        self._page_size = page_size
        self._arrived = asyncio.Event()

    async def batches(self, silence_seconds: float) -> AsyncGenerator[list[Message], None]:
        """Missed messages, then new ones; an empty batch after `silence_seconds` without a message."""
        async for batch in self._missed(self):
            if self.ended.done():
                return
            self.place = batch[-1].id
            yield batch
        while not self.ended.done():
            if taken := self._backlog.read(self.next_number, self._page_size):
                self.next_number += len(taken)
                # The backlog fills from registration on, so its first messages may have been replayed already.
                if batch := [message for message in taken if message.id > self.place]:
                    self.place = batch[-1].id
                    yield batch
            elif not await self._has_arrived_within(silence_seconds):
                yield []

    def wake(self) -> bool:
        """Let the subscriber read; false if it was not waiting."""
        if self not in self._waiting:
            return False
        self._waiting.remove(self)
        self._arrived.set()
        return True

    def end(self, reason: EndReason) -> None:
        """Deliver no more messages; a new subscription can continue after `place`."""
        if not self.ended.done():
            self.ended.set_result(reason)
            self.wake()

    async def _has_arrived_within(self, seconds: float) -> bool:
        self._arrived.clear()
        self._waiting.add(self)
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(self)
        return True


# Less than a millisecond of work, usually: what an order may have to wait for.
READERS_PER_TURN = 8
# An account with many streams leaves most of a turn to others.
READERS_PER_ACCOUNT = 2
# Streams get at most a quarter of the event loop's time.
REST_FACTOR = 3.0
# The work of others counts as the turn's own if it falls between, so the rest has an upper bound.
TURN_REST_SECONDS_MAX = 0.02


class StreamScheduler:
    """The accounts whose streams have something to write; a task runs while there are any."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Work] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, account: str, backlog: Backlog) -> None:
        """Wake the waiting subscribers of the account's backlog in due course."""
        if not backlog.waiting:
            return
        work = self._accounts.get(account)
        if work is None:
            work = self._accounts[account] = _Work()
        work.backlogs[backlog] = None
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._accounts:
                started = loop.time()
                self._take_turn()
                # The subscribers that were woken write now.
                await asyncio.sleep(0)
                await asyncio.sleep(min((loop.time() - started) * REST_FACTOR, TURN_REST_SECONDS_MAX))
        finally:
            self._task = None

    def _take_turn(self) -> None:
        left = READERS_PER_TURN
        while self._accounts and left > 0:
            account = next(iter(self._accounts))
            work = self._accounts.pop(account)
            left -= work.wake(min(left, READERS_PER_ACCOUNT))
            if work.remains:
                self._accounts[account] = work


class _Work:
    """One account's streams that have something to write."""

    def __init__(self) -> None:
        self.backlogs: dict[Backlog, None] = {}
        self._readers: list[Subscription] = []

    @property
    def remains(self) -> bool:
        return bool(self.backlogs or self._readers)

    def wake(self, count: int) -> int:
        """Wake up to `count` subscribers and return their number."""
        woken = 0
        while woken < count:
            if self._readers:
                woken += self._readers.pop().wake()
            elif self.backlogs:
                backlog = next(iter(self.backlogs))
                del self.backlogs[backlog]
                self._readers = list(backlog.waiting)
            else:
                break
        return woken


log = structlog.get_logger()

SHARD = 0
# Small: a page is dispatched without a pause, and every subscriber may write one at once.
PAGE_SIZE = 200
# Each subscriber costs a connection and, at worst, a topic with a full backlog.
SUBSCRIBERS_MAX = 10_000
# Of one replay; there are at most as many replays as subscribers.
REPLAYED_ORDERS_MAX = 1_000
# Commits of other processes do not notify this one; their events wait at most this long.
POLL_SECONDS = 0.25
# Reading competes with accepting orders: after a page the reader rests as long as the page took, at most this long, so
# that under load one page holds what would have been several small ones.
REST_SECONDS_MAX = 0.005
RETRY_SECONDS = 1.0


class StreamHub:
    """Reads the journal once for all subscribers, and only while there are any."""

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
        orders_max: int = ORDERS_MAX,
        page_size: int = PAGE_SIZE,
        metrics: Metrics | None = None,
    ) -> None:
        self.subscribers = 0
        self._journal = journal
        self._queries = queries
        self._buffer_size = buffer_size
        self._queue_capacity = queue_capacity
        self._behind_max = behind_max
        self._subscribers_max = subscribers_max
        self._page_size = page_size
        self._metrics = metrics or Metrics()
        self._replay_slots = asyncio.Semaphore(replays_max)
        self._backlogs: dict[Topic, Backlog] = {}
        self._scheduler = StreamScheduler()
        self._active = asyncio.Event()
        self._closed = False
        # The orders of the followed events, as of `_position`.
        self._folds = OrderFolds(queries, orders_max)
        # While reading: all events up to `_position` are dispatched, and the ring has all events above `_floor`, with
        # their messages if they had a subscriber.
        self._is_reading = False
        self._position = 0
        self._floor = 0
        self._history = ""
        """The `Journal.history` under which the ring was read."""
        self._ring: deque[tuple[Topic, Topic, JournalEvent, Message | None]] = deque()

    async def run(self, wake: Wake) -> None:
        """Dispatch until closed."""
        loop = asyncio.get_running_loop()
        try:
            while not self._closed:
                await self._active.wait()
                try:
                    began = loop.time()
                    count = await self.run_once()
                    if count == 0:
                        await wake.wait(POLL_SECONDS)
                    elif count < self._page_size:
                        await asyncio.sleep(min(loop.time() - began, REST_SECONDS_MAX))
                except Unavailable as error:
                    log.warning("streams_wait_for_journal", error=str(error), retry_seconds=RETRY_SECONDS)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            # End the streams, so that their clients reconnect instead of waiting on a stream without a source.
            self._end_all()

    async def run_once(self) -> int:
        """Dispatch the next page and return its number of events."""
        position = self._position
        if not self._is_reading:
            return 0
        events = await self._journal.read(SHARD, position, self._page_size)
        history = self._journal.history
        if not self._is_at(position):
            return 0
        # Again after each load: another order may have got a subscriber meanwhile.
        while wanted := self._folds.missing(filter(self._is_followed, events)):
            loaded = await self._folds.load(wanted)
            if not self._is_at(position):
                return 0
            self._folds.add(loaded)
        if events and history != self._history:
            self._ring.clear()
            self._floor, self._history = position, history
        for event in events:
            self._dispatch(event)
            self._position = event.seq
        self._folds.trim()
        return len(events)

    @asynccontextmanager
    async def subscribe(
        self, scope: Scope, id: str, last_event_id: int | None = None, *, urgent: bool = False
    ) -> AsyncIterator[Subscription]:
        """Subscribe to an account or an order, from now on or from `last_event_id` on.

        An urgent subscriber reads its messages at once and without their data: it only waits for something to happen.
        The others share the time that streams may take.
        """
        if self._closed:
            raise QueueFull("this gateway is stopping: connect again")
        if self.subscribers >= self._subscribers_max:
            raise QueueFull(f"{self._subscribers_max} streams are open, the maximum: try again later")
        topic = scope, id
        backlog = self._backlogs.get(topic)
        if backlog is None:
            backlog = self._backlogs[topic] = Backlog(self._queue_capacity)
        subscription = Subscription(topic, backlog, missed=self._missed, page_size=self._page_size, urgent=urgent)
        backlog.subscriptions.add(subscription)
        backlog.readers += not urgent
        self._count(1)
        try:
            if not self._is_reading:
                head = await self.head()
                if not self._is_reading:  # another subscriber may have started it meanwhile
                    self._is_reading, self._position, self._floor = True, head, head
                    self._history = self._journal.history
                    self._active.set()
            subscription.start = self._position
            subscription.place = self._position if last_event_id is None else last_event_id
            yield subscription
        finally:
            self._remove(subscription)

    async def head(self) -> int:
        """The journal's newest number."""
        return (await self._journal.head(SHARD)).seq

    async def _missed(self, subscription: Subscription) -> AsyncIterator[list[Message]]:
        """The messages between the subscriber's last one and the start of its queue, or `resync_required`."""
        topic, last, start = subscription.topic, subscription.place, subscription.start
        if last > start:
            # Another gateway may be ahead of this one; only the journal can tell whether the number exists.
            if last > await self.head():
                yield [resync_message(topic, last, start)]
        elif (found := await self._ring_after(subscription, last)) is not None:
            if len(found) > self._behind_max:
                yield [resync_message(topic, last, start)]
                return
            folds = OrderFolds(self._queries, REPLAYED_ORDERS_MAX)
            for first in range(0, len(found), self._page_size):
                page = found[first : first + self._page_size]
                messages = [message for _, message in page if message is not None]
                # From the first event without a message on, all are folded: a fold needs every event of its order.
                if folds.is_empty and len(messages) == len(page):
                    yield messages
                else:
                    yield await self._folded(folds, [event for event, _ in page])
        elif await self._needs_resync(subscription, last):
            yield [resync_message(topic, last, start)]
        else:
            folds = OrderFolds(self._queries, REPLAYED_ORDERS_MAX)
            async for events in self._pages(subscription, last, self._page_size):
                if messages := await self._folded(folds, events):
                    yield messages

    async def _ring_after(
        self, subscription: Subscription, last: int
    ) -> list[tuple[JournalEvent, Message | None]] | None:
        """The missed events if the ring has them all, and a failover would lose none of them; otherwise None."""
        if last < self._floor:
            return None
        topic, start, history = subscription.topic, subscription.start, self._history
        found = [
            (event, message) for *topics, event, message in self._ring if last < event.seq <= start and topic in topics
        ]
        if found:
            await self._journal.confirm()
        return found if history == self._journal.history else None

    def close(self) -> None:
        """End all subscriptions and accept no more."""
        self._closed = True
        self._end_all()
        self._active.set()

    async def _folded(self, folds: OrderFolds, events: list[JournalEvent]) -> list[Message]:
        async with self._replay_slots:
            return await folds.messages(events)

    def _is_at(self, position: int) -> bool:
        """False if all subscribers left during a read; the hub may have restarted at another position."""
        return self._is_reading and self._position == position

    def _is_followed(self, event: JournalEvent) -> bool:
        """Whether a subscriber needs the event's message with its data."""
        if not has_message(event):
            return False
        account = self._backlogs.get(("account", event.account_id))
        order = self._backlogs.get(("order", event.order_id or ""))
        return (account is not None and account.readers > 0) or (order is not None and order.readers > 0)

    def _dispatch(self, event: JournalEvent) -> None:
        if event.order_id is None or not has_message(event):
            return
        message = None
        if self._is_followed(event):
            message = self._folds.message(event)
        else:
            self._folds.forget(event.order_id)
        account: Topic = ("account", event.account_id)
        order: Topic = ("order", event.order_id)
        self._ring.append((account, order, event, message))
        while len(self._ring) > self._buffer_size:
            self._floor = self._ring.popleft()[2].seq
        for topic in (account, order):
            backlog = self._backlogs.get(topic)
            if backlog is not None:
                if ended := backlog.add(message or signal_of(event)):
                    self._metrics.stream_drops.inc(ended)
                for subscription in list(backlog.urgent):
                    subscription.wake()
                self._scheduler.add(event.account_id, backlog)

    async def _needs_resync(self, subscription: Subscription, last: int) -> bool:
        async with self._replay_slots:
            oldest = await self._journal.read(SHARD, 0, 1)
            epochs = await self._journal.epochs(SHARD)
        if oldest and oldest[0].seq > last + 1:
            return True
        # A number in the gap before an epoch was given out by a database that was replaced by a restored one: the
        # subscriber has seen events that this journal does not have.
        if any(epoch.after_seq < last < epoch.first_seq - 1 for epoch in epochs):
            return True
        if subscription.start - last <= self._behind_max:
            return False
        behind = 0
        # Count before sending anything: `resync_required` is useless after ten thousand messages.
        async for page in self._pages(subscription, last, PAGE_MAX):
            behind += len(page)
            if behind > self._behind_max:
                return True
        return False

    async def _pages(self, subscription: Subscription, after: int, size: int) -> AsyncIterator[list[JournalEvent]]:
        """The topic's events up to the start of the queue; a slow subscriber holds no replay slot between pages."""
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

    def _remove(self, subscription: Subscription) -> None:
        backlog = self._backlogs[subscription.topic]
        backlog.subscriptions.remove(subscription)
        backlog.readers -= not subscription.urgent
        if not backlog.subscriptions:
            del self._backlogs[subscription.topic]
        self._count(-1)
        if not self.subscribers:
            self._is_reading = False
            self._ring.clear()
            self._folds.clear()
            if not self._closed:
                self._active.clear()

    def _count(self, change: int) -> None:
        self.subscribers += change
        self._metrics.stream_readers.set(self.subscribers)

    def _end_all(self) -> None:
        for backlog in self._backlogs.values():
            for subscription in backlog.subscriptions:
                subscription.end("closing")
