"""How long an order would wait to be sent: one that would leave too late is better refused than accepted to expire."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from switchyard.domain.decisions import SEND_DEADLINES
from switchyard.domain.errors import QueueDelayed
from switchyard.domain.ids import VenueName
from switchyard.domain.orders import TimeInForce
from switchyard.ports.clock import Clock
from switchyard.ports.queries import Queries

# Short against the shortest deadline (2.5 s), and a lookup by index each time.
LOOK_SECONDS = 0.25
# A picture older than this says nothing any more: rather accept than refuse by guessing.
STALE_SECONDS = 2.0


class Forecast:
    """Per venue, how long the order at the head of its queue has waited: whoever joins now waits about as long."""

    def __init__(self, queries: Queries, venues: Sequence[VenueName], clock: Clock) -> None:
        self._queries = queries
        self._venues = venues
        self._clock = clock
        self._delays: dict[VenueName, timedelta] = {}
        self._seen_at = float("-inf")

    async def run(self) -> None:
        """Look for as long as the process lives."""
        while True:
            await self.run_once()
            await asyncio.sleep(LOOK_SECONDS)

    async def run_once(self) -> int:
        """Look at the heads of the queues; returns at how many somebody waits."""
        heads = await self._queries.oldest_unsent(self._venues)
        now = self._clock.now()
        self._delays = {venue: now - accepted_at for venue, accepted_at in heads.items()}
        self._seen_at = self._clock.monotonic()
        return len(heads)

    def delay(self, venue: VenueName) -> timedelta:
        """How long an order to this venue would wait now; zero where that is not known."""
        if self._clock.monotonic() - self._seen_at > STALE_SECONDS:
            return timedelta(0)
        return self._delays.get(venue, timedelta(0))

    def is_too_slow(self, venue: VenueName, time_in_force: TimeInForce | None) -> bool:
        """Whether an order that wants to be filled at once would leave after its deadline."""
        deadline = SEND_DEADLINES.get(time_in_force) if time_in_force is not None else None
        return deadline is not None and self.delay(venue) > deadline

    def refusal(self, venue: VenueName) -> QueueDelayed:
        """What the caller is told."""
        return QueueDelayed(
            f"orders to {venue} wait {self.delay(venue).total_seconds():.1f} s: it would leave too late"
        )
