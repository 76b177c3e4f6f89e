"""Take expired keys away, a page at a time: never one whose order may still be asked about."""

import asyncio

import structlog

from switchyard.ports.clock import Clock
from switchyard.ports.keys import KeyId, KeyStore
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

PAGE = 500
# A page takes a millisecond or two; in between, the orders that come in have the database to themselves.
PAUSE_SECONDS = 0.2
# Keys live for an hour at least: looking again after a minute is soon enough.
REST_SECONDS = 60.0


class Reaper:
    """Walks through the key store again and again."""

    def __init__(self, keys: KeyStore, clock: Clock, metrics: Metrics) -> None:
        self._keys = keys
        # A gateway whose own clock is an hour ahead must not take away keys that are still needed.
        self._clock = clock
        self._metrics = metrics
        self._after: KeyId | None = None

    async def run(self) -> None:
        """Walk for as long as the process lives."""
        while True:
            await self.run_once()
            await asyncio.sleep(PAUSE_SECONDS if self._after is not None else REST_SECONDS)

    async def run_once(self) -> int:
        """Look at one page; returns how many keys were removed."""
        reaped = await self._keys.reap(self._clock.now(), self._after, PAGE)
        self._after = reaped.after
        if reaped.count:
            self._metrics.reaped.inc(reaped.count)
            log.info("expired keys removed", count=reaped.count)
        return reaped.count
