"""Remove expired idempotency keys, one page at a time; a key stays until its order is final.

Reads and deletes rows of the key store; writes a metric and a log line.
"""

import asyncio
from collections.abc import Collection

import structlog

from switchyard.ports.clock import Clock
from switchyard.ports.queries import KeyId, KeyStore
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

PAGE = 500
# A page takes a millisecond or two; the pause leaves the database to the incoming orders.
PAUSE_SECONDS = 0.2
# Pause between two walks. Keys live for at least an hour, so a minute more does not matter.
REST_SECONDS = 60.0


class Reaper:
    """Walks through the key store again and again."""

    def __init__(self, keys: KeyStore, clock: Clock, metrics: Metrics, *, kept: Collection[str] = ()) -> None:
        """`kept`: operations whose keys are never removed."""
        self._keys = keys
        self._kept = frozenset(kept)
        # The database's clock: a gateway whose own clock is an hour ahead must not remove valid keys.
        self._clock = clock
        self._metrics = metrics
        self._after: KeyId | None = None

    async def run(self) -> None:
        """Remove keys until cancelled."""
        while True:
            await self.run_once()
            await asyncio.sleep(PAUSE_SECONDS if self._after is not None else REST_SECONDS)

    async def run_once(self) -> int:
        """Process one page; returns how many keys were removed."""
        reaped = await self._keys.reap(self._clock.now(), self._clock.jumped_at, self._after, PAGE, self._kept)
        self._after = reaped.after
        if reaped.count:
            self._metrics.reaped.inc(reaped.count)
            log.info("expired_keys_removed", count=reaped.count)
        return reaped.count
