"""Wakes a waiting stage. It carries no data: the stage reads its rows."""

import asyncio
import contextlib


class Wake:
    """An event with a time-out: several notifications before a wait count as one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._is_notified = False

    def notify(self) -> None:
        """Wake the waiting stage, or let its next wait return at once."""
        if not self._is_notified:
            self._is_notified = True
            self._event.set()

    async def wait(self, seconds: float) -> None:
        """Return at the next notification, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self._is_notified = False
        self._event.clear()
