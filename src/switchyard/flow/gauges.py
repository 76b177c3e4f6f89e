"""Gauges that are computed when `/metrics` is read, from the sequencer's queue, the outbox and the cache."""

from switchyard.flow.sequencer import Sequencer
from switchyard.ports.cache import Cache
from switchyard.ports.clock import Clock
from switchyard.ports.outbox import OutboxQueries
from switchyard.telemetry.metrics import Metrics

STATUSES = ("queued", "failed", "sending", "uncertain")


class Gauges:
    """Sets the gauges of the queue and the outbox."""

    def __init__(self, *, queries: OutboxQueries, sequencer: Sequencer, clock: Clock, metrics: Metrics) -> None:
        self._queries = queries
        self._sequencer = sequencer
        self._clock = clock
        self._metrics = metrics
        self.cache: Cache | None = None
        """Set where the process has an idempotency cache."""

    async def refresh(self) -> None:
        """Read the queue, the outbox and the cache, and set the gauges."""
        if self.cache is not None:
            self._metrics.cache.show(await self.cache.stats())
        self._metrics.queue_depth.set(self._sequencer.depth)
        counts = {count.status: count for count in await self._queries.outbox_counts()}
        for status in STATUSES:
            count = counts.get(status)
            self._metrics.outbox_rows.labels(status).set(count.rows if count else 0)
        in_doubt = counts.get("uncertain")
        self._metrics.outbox_uncertain.set(in_doubt.rows if in_doubt else 0)
        waiting = [
            count.oldest_created_at
            for count in counts.values()
            if count.status in ("queued", "failed") and count.oldest_created_at is not None
        ]
        lag = self._clock.now() - min(waiting) if waiting else None
        self._metrics.outbox_oldest.set(max(lag.total_seconds(), 0) if lag else 0)
