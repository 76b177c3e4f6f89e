"""A nudge from one stage to another: there is something to look at."""

import asyncio
import contextlib


class Wake:
    """Set by whoever has news, waited for by the one who reads it; nothing is passed, so nothing can be lost."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        """There is news."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Return at the next news, or after so many seconds without."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self._event.clear()
