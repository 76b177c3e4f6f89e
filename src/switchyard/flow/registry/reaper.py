"""Removes rechecks that ended long ago, with their keys, results and artifacts. Writes the PDCA store."""

import asyncio
from datetime import timedelta

import structlog

from switchyard.ports.clock import Clock
from switchyard.ports.strategies import RecheckRequests

log = structlog.get_logger()

PAUSE_SECONDS = 60.0
# A request has up to thousands of rows and megabytes of artifacts: few at a time keep the transaction short.
BATCH = 5
BATCH_PAUSE_SECONDS = 1.0


class RecheckReaper:
    """Removes requests past their retention."""

    def __init__(self, requests: RecheckRequests, clock: Clock, retention: timedelta) -> None:
        self._requests = requests
        self._clock = clock
        self._retention = retention

    async def run_once(self) -> int:
        """Remove a few requests and return their number."""
        count = await self._requests.reap(self._clock.now() - self._retention, BATCH)
        if count:
            log.info("rechecks_removed", count=count)
        return count

    async def run(self) -> None:
        """Remove requests until cancelled."""
        while True:
            count = await self.run_once()
            await asyncio.sleep(BATCH_PAUSE_SECONDS if count == BATCH else PAUSE_SECONDS)
