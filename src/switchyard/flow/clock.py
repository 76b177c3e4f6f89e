"""The database's clock: deadlines, ages and dates mean the same in all processes of a database.

With its own wall clock, a process whose clock is wrong or is set while it runs would send orders late, expire them at
once, or treat a key as expired that is still valid.
"""

import asyncio
from datetime import datetime, timedelta

from switchyard.ports.clock import Clock
from switchyard.ports.keys import KeyStore

# Clocks drift by about a millisecond in this time.
LOOK_SECONDS = 10.0
# A slower answer is less exact than the previous one, advanced by the monotonic clock.
ROUND_TRIP_SECONDS_MAX = 1.0


class DatabaseClock:
    """Implements `Clock`: the database's time, advanced by this process's monotonic clock."""

    def __init__(self, keys: KeyStore, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._anchor: tuple[datetime, float] | None = None
        """The database's time, and the monotonic time at which it was read."""

    async def run(self) -> None:
        """Read the database's time periodically for as long as the process lives."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> datetime:
        """Read the database's time; returns this clock's time."""
        asked_at = self._clock.monotonic()
        now = await self._keys.now()
        # Anchored at the answer, not at the question: this clock is late by the round trip at most, and never ahead, so
        # that no row is due only in the future.
        answered_at = self._clock.monotonic()
        if self._anchor is None or answered_at - asked_at <= ROUND_TRIP_SECONDS_MAX:
            self._anchor = (now, answered_at)
        return self.now()

    def now(self) -> datetime:
        """The database's time; this process's own time before the first `look`, which precedes every stage."""
        if self._anchor is None:
            return self._clock.now()
        now, answered_at = self._anchor
        return now + timedelta(seconds=self._clock.monotonic() - answered_at)

    def monotonic(self) -> float:
        """Seconds that never decrease."""
        return self._clock.monotonic()
