"""The database's time in this process: gateways whose own clocks differ judge the age of a request alike."""

import asyncio
from datetime import datetime, timedelta

from switchyard.ports.clock import Clock
from switchyard.ports.ledger import Ledger

# Clocks drift by milliseconds in this time.
LOOK_SECONDS = 10.0
# An answer that took longer says less than what was told before, carried on.
ROUND_TRIP_SECONDS_MAX = 1.0


class DatabaseClock:
    """The time that the database told, carried on by this process's monotonic clock."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
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
        now = await self._ledger.now()
        # As if it were told only now: this clock is a little late, never ahead, so that nothing is dated in the future
        # and waits until it has come.
        heard = self._clock.monotonic()
        if self._told is None or heard - asked <= ROUND_TRIP_SECONDS_MAX:
            self._told = (now, heard)
        return self._carried(self._told)

    async def now(self) -> datetime:
        """The database's time; asks only where it was never told."""
        return await self.look() if self._told is None else self._carried(self._told)

    def _carried(self, told: tuple[datetime, float]) -> datetime:
        now, heard = told
        return now + timedelta(seconds=self._clock.monotonic() - heard)
