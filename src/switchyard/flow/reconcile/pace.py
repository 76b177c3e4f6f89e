"""Pauses between the pages of a pass, so that reconciliation takes at most half of a shared processor."""

import asyncio

from switchyard.ports.clock import Clock


class Pace:
    """Call `rest` after each page."""

    def __init__(self, clock: Clock, *, shares: bool) -> None:
        """`shares`: whether the process also accepts or sends orders, which go first."""
        self._clock = clock
        self._shares = shares
        self._began_at = clock.monotonic()

    async def rest(self) -> None:
        """Pause for as long as the page took, in a process that also handles orders."""
        await asyncio.sleep(max(self._clock.monotonic() - self._began_at, 0.0) if self._shares else 0)
        self._began_at = self._clock.monotonic()
