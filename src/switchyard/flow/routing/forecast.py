"""Estimate per venue how long a new order would wait before it is sent.

An order that would miss its send deadline is rejected with 503 instead of being accepted only to expire. Reads the
head of each venue's outbox queue; writes nothing.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from switchyard.domain.decisions import SEND_DEADLINES
from switchyard.domain.errors import QueueDelayed
from switchyard.domain.ids import VenueName
from switchyard.domain.orders.order import TimeInForce
from switchyard.ports.clock import Clock
from switchyard.ports.outbox import OutboxQueries, QueueHead

# Short compared with the shortest deadline (2.5 s); each poll is one lookup by index.
POLL_SECONDS = 0.25
# The queue keeps growing until the next poll, and its pace is an estimate: an order that is predicted to be sent this
# close to its deadline may as well miss it.
MARGIN = timedelta(seconds=1)
# After this time without a successful poll the estimate is dropped: accept rather than reject on old data.
STALE_SECONDS = 2.0


class _Head(msgspec.Struct):
    """The order at the head of a venue's queue."""

    seq: int
    accepted_at: datetime
    seen_at: float
    """When it was first seen at the head, on the monotonic clock."""
    delay: timedelta
    """The wait of an order that joined at that time, estimated from the pace at which the earlier heads left."""


class Forecast:
    """The expected wait in each venue's queue.

    While the head changes, the wait is the age of the head divided by the pace at which that age shrinks. A backlog
    from before a restart that is sent quickly therefore delays no new order. While the head stays the same, the wait
    is at least the time that it has been the head.
    """

    def __init__(self, queries: OutboxQueries, venues: Sequence[VenueName], clock: Clock) -> None:
        self._queries = queries
        self._venues = venues
        self._clock = clock
        self._heads: dict[VenueName, _Head] = {}
        self._polled_at = float("-inf")
        self._polled_now = clock.now()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.run_once()
            await asyncio.sleep(POLL_SECONDS)

    async def run_once(self) -> int:
        """Read the heads of the queues; returns how many venues have one."""
        oldest = await self._queries.oldest_unsent(self._venues)
        self._polled_at, self._polled_now = self._clock.monotonic(), self._clock.now()
        self._heads = {venue: self._head(venue, head) for venue, head in oldest.items()}
        return len(oldest)

    def _head(self, venue: VenueName, head: QueueHead) -> _Head:
        previous = self._heads.get(venue)
        if previous is None:
            return _Head(head.seq, head.created_at, self._polled_at, timedelta(0))
        if head.seq <= previous.seq:
            return previous
        shortened = head.created_at - previous.accepted_at
        if shortened <= timedelta(0):
            # Dated by a gateway whose clock is slower: the queue moves, but its pace cannot be told from this pair.
            return _Head(head.seq, previous.accepted_at, self._polled_at, previous.delay)
        remaining = max(self._clock.now() - head.created_at, timedelta(0))
        elapsed = timedelta(seconds=self._polled_at - previous.seen_at)
        return _Head(head.seq, head.created_at, self._polled_at, remaining / shortened * elapsed)

    def delay(self, venue: VenueName) -> timedelta:
        """Return how long a new order to this venue would wait; zero where that is not known."""
        head = self._heads.get(venue)
        if head is None or self._clock.monotonic() - self._polled_at > STALE_SECONDS:
            return timedelta(0)
        return max(head.delay, timedelta(seconds=self._polled_at - head.seen_at))

    def age(self, venue: VenueName) -> timedelta:
        """Return how long the head of the venue's queue had waited at the last poll; zero where that is not known."""
        head = self._heads.get(venue)
        if head is None or self._clock.monotonic() - self._polled_at > STALE_SECONDS:
            return timedelta(0)
        return self._polled_now - head.accepted_at

    def is_too_slow(self, venue: VenueName, time_in_force: TimeInForce | None) -> bool:
        """Whether a new order might be sent after its deadline; only IOC and FOK orders have one."""
        deadline = SEND_DEADLINES.get(time_in_force) if time_in_force is not None else None
        return deadline is not None and self.delay(venue) > deadline - MARGIN

    def rejection(self, venue: VenueName) -> QueueDelayed:
        """Return the error for an order that might be sent too late."""
        seconds = self.delay(venue).total_seconds()
        return QueueDelayed(f"orders to {venue} wait {seconds:.1f} s: this one might miss its send deadline")
