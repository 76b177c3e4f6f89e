"""How long an order would wait to be sent: one that would leave too late is better rejected than accepted to expire."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from switchyard.domain.decisions import SEND_DEADLINES
from switchyard.domain.errors import QueueDelayed
from switchyard.domain.ids import VenueName
from switchyard.domain.orders import TimeInForce
from switchyard.ports.clock import Clock
from switchyard.ports.outbox import OutboxQueries

# Short against the shortest deadline (2.5 s), and a lookup by index each time.
LOOK_SECONDS = 0.25
# A picture older than this says nothing any more: rather accept than reject by guessing.
STALE_SECONDS = 2.0


class _Head(msgspec.Struct):
    """The order at the head of a venue's queue, as long as it is the same one."""

    accepted_at: datetime
    seen_at: float
    """When it was first seen there."""
    delay: timedelta
    """What somebody who joined then would have waited, by the pace at which the heads before it left."""


class Forecast:
    """Per venue, how long whoever joins its queue now would wait.

    While the head changes, the queue's length in time is divided by the pace at which it shortens: a backlog from
    before a restart that is worked off quickly delays nobody. While the head stands still, the wait is no shorter.
    """

    def __init__(self, queries: OutboxQueries, venues: Sequence[VenueName], clock: Clock) -> None:
        self._queries = queries
        self._venues = venues
        self._clock = clock
        self._heads: dict[VenueName, _Head] = {}
        self._seen_at = float("-inf")

    async def run(self) -> None:
        """Look for as long as the process lives."""
        while True:
            await self.run_once()
            await asyncio.sleep(LOOK_SECONDS)

    async def run_once(self) -> int:
        """Look at the heads of the queues; returns at how many somebody waits."""
        found = await self._queries.oldest_unsent(self._venues)
        self._seen_at = self._clock.monotonic()
        self._heads = {venue: self._head(venue, accepted_at) for venue, accepted_at in found.items()}
        return len(found)

    def _head(self, venue: VenueName, accepted_at: datetime) -> _Head:
        before = self._heads.get(venue)
        if before is None:
            return _Head(accepted_at, self._seen_at, timedelta(0))
        if accepted_at <= before.accepted_at:
            return before
        shortened = accepted_at - before.accepted_at
        left = max(self._clock.now() - accepted_at, timedelta(0))
        return _Head(accepted_at, self._seen_at, left / shortened * timedelta(seconds=self._seen_at - before.seen_at))

    def delay(self, venue: VenueName) -> timedelta:
        """How long an order to this venue would wait now; zero where that is not known."""
        head = self._heads.get(venue)
        if head is None or self._clock.monotonic() - self._seen_at > STALE_SECONDS:
            return timedelta(0)
        return max(head.delay, timedelta(seconds=self._seen_at - head.seen_at))

    def is_too_slow(self, venue: VenueName, time_in_force: TimeInForce | None) -> bool:
        """Whether an order that wants to be filled at once would leave after its deadline."""
        deadline = SEND_DEADLINES.get(time_in_force) if time_in_force is not None else None
        return deadline is not None and self.delay(venue) > deadline

    def rejection(self, venue: VenueName) -> QueueDelayed:
        """What the caller is told."""
        return QueueDelayed(
            f"orders to {venue} wait {self.delay(venue).total_seconds():.1f} s: it would leave too late"
        )
