"""Pauses between the pages of a pass, so that reconciliation takes at most a fifth of a shared processor."""

import asyncio

from switchyard.ports.clock import Clock

# In a process that also handles orders: the pause after a page, as a multiple of the time that it took.
REST_FACTOR = 4
# A page that waited for a venue or a lock did not use the processor for as long.
REST_SECONDS_MAX = 1.0


class Pace:
    """Call `rest` after each page."""

    def __init__(self, clock: Clock, *, shares: bool) -> None:
        """`shares`: whether the process also accepts or sends orders, which go first."""
        self._clock = clock
        self._shares = shares
        self._began_at = clock.monotonic()

    async def rest(self) -> None:
        """Pause for a while, in a process that also handles orders."""
        taken_seconds = max(self._clock.monotonic() - self._began_at, 0.0)
        await asyncio.sleep(min(REST_FACTOR * taken_seconds, REST_SECONDS_MAX) if self._shares else 0)
        self._began_at = self._clock.monotonic()
