"""One clock for all processes of a database: deadlines, ages and dates mean the same to each of them.

A process whose own clock is off, or is set while it runs, would otherwise send orders late, let them expire at once, or
take a key for expired that somebody else still needs.
"""

import asyncio
from datetime import datetime, timedelta

from switchyard.ports.clock import Clock
from switchyard.ports.keys import KeyStore

# Clocks drift by milliseconds in this time.
LOOK_SECONDS = 10.0
# An answer that took longer says less than what was told before, carried on.
ROUND_TRIP_SECONDS_MAX = 1.0


class DatabaseClock:
    """ports.clock.Clock: the time that the database told, carried on by this process's monotonic clock."""

    def __init__(self, keys: KeyStore, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._told: tuple[datetime, float] | None = None

    async def run(self) -> None:
        """Ask now and then for as long as the process lives."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> datetime:
        """Ask for the time; returns the time that is taken for it."""
        asked = self._clock.monotonic()
        now = await self._keys.now()
        # As if it were told only now: this clock is a little late, never ahead, so that nothing is dated in the future
        # and waits until it has come.
        heard = self._clock.monotonic()
        if self._told is None or heard - asked <= ROUND_TRIP_SECONDS_MAX:
            self._told = (now, heard)
        return self.now()

    def now(self) -> datetime:
        """The database's time; this process's own where it was never told, which is before the first stage starts."""
        if self._told is None:
            return self._clock.now()
        now, heard = self._told
        return now + timedelta(seconds=self._clock.monotonic() - heard)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return self._clock.monotonic()
