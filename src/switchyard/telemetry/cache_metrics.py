"""The metrics of the idempotency cache."""

from typing import get_args

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from switchyard.ports.cache import CacheError, CacheStats, CacheStatus
from switchyard.telemetry.plain import PlainCounter

log = structlog.get_logger()


class CacheMetrics:
    """ports.cache.CacheWatch; prevented duplicates are counted by the intake, not by the cache."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.hits = PlainCounter("idempotency_cache_hits_total", "Cache lookups that found an entry", registry)
        self.misses = PlainCounter("idempotency_cache_misses_total", "Cache lookups that found no entry", registry)
        self.errors = Counter("idempotency_cache_errors_total", "Cache errors, by kind", ["kind"], registry=registry)
        for kind in get_args(CacheError):
            self.errors.labels(kind)  # an alert needs to see the first increase from 0
        self.entries = 0
        Gauge("idempotency_cache_size", "Entries in the cache", registry=registry).set_function(lambda: self.entries)
        self.tracks_hits = True
        self.expirations = Counter(
            "idempotency_cache_expirations_total", "Cache entries removed after their time", registry=registry
        )
        self.by_status = Gauge(
            "idempotency_cache_entries",
            "Entries in the cache that have not expired, by status",
            ["status"],
            registry=registry,
        )
        self.expired_entries = Gauge(
            "idempotency_cache_expired_entries", "Expired entries that are still in the cache", registry=registry
        )
        self.oldest = Gauge(
            "idempotency_cache_oldest_seconds", "Age of the oldest entry in the cache", registry=registry
        )
        self.hit_rate = Gauge(
            "idempotency_cache_hit_rate", "Cache hits divided by lookups, since the start", registry=registry
        )
        self.memory = Gauge("redis_memory_bytes", "Memory that the Redis server uses", registry=registry)

    def looked_up(self, *, hit: bool) -> None:
        """A lookup ended."""
        if self.tracks_hits:
            (self.hits if hit else self.misses).inc()

    def failed(self, kind: CacheError) -> None:
        """An operation failed; the caller was answered without the cache."""
        self.errors.labels(kind).inc()

    def expired(self, entries: int) -> None:
        """Entries were removed because their time was over."""
        self.expirations.inc(entries)
        log.info("cache_entries_expired", count=entries)

    def holds(self, entries: int) -> None:
        """The cache has this number of entries."""
        self.entries = entries

    def show(self, stats: CacheStats) -> None:
        """Set the gauges that are computed on demand."""
        for status in get_args(CacheStatus):
            self.by_status.labels(status).set(stats.by_status.get(status, 0))
        self.expired_entries.set(stats.expired)
        self.oldest.set(stats.oldest_age_seconds or 0)
        self.hit_rate.set(stats.hit_rate)
        self.memory.set(stats.memory_bytes or 0)
