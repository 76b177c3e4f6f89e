"""The cache metrics have the names of the specification."""

from prometheus_client import generate_latest

from switchyard.ports.cache import CacheWatch
from switchyard.telemetry.metrics import Metrics


def test_lookups_errors_and_size_are_counted() -> None:
    metrics = Metrics()
    watch: CacheWatch = metrics.cache
    for hit in (True, True, False):
        watch.looked_up(hit=hit)
    watch.failed("wrong_entry")
    watch.holds(7)
    metrics.redis_up.set(False)
    text = generate_latest(metrics.registry).decode()
    for line in (
        "idempotency_cache_hits_total 2.0",
        "idempotency_cache_misses_total 1.0",
        'idempotency_cache_errors_total{kind="wrong_entry"} 1.0',
        "idempotency_cache_size 7.0",
        "redis_up 0.0",
    ):
        assert line in text.splitlines()
