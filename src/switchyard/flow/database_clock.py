"""The database's time in this process: gateways whose own clocks differ judge the age of a request alike."""

import asyncio
from datetime import datetime, timedelta

from switchyard.ports.clock import Clock
from switchyard.ports.ledger import Ledger

# Clocks drift by milliseconds in this time.
LOOK_SECONDS = 10.0


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
        """Ask for the time."""
        before = self._clock.monotonic()
        told = await self._ledger.now()
        # The answer was true somewhere between the question and its arrival.
        self._told = (told, (before + self._clock.monotonic()) / 2)
        return self._told[0]

    async def now(self) -> datetime:
        """The database's time; asks only where it was never told."""
        if self._told is None:
            return await self.look()
        told, at = self._told
        return told + timedelta(seconds=self._clock.monotonic() - at)
