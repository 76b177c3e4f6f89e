"""What the stages count and measure, under the names that the specifications give."""

from collections.abc import Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary
from prometheus_client.core import CounterMetricFamily, Metric

from switchyard.ports.cache_watch import CacheError


class LatencyMax:
    """`<name>_sum`, `<name>_count` and `<name>_max` of a latency in milliseconds."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self._summary = Summary(name, text, registry=registry)
        self._max = Gauge(name + "_max", text + " (largest so far)", registry=registry)
        self._largest = 0.0

    def observe(self, milliseconds: float) -> None:
        """Count one."""
        self._summary.observe(milliseconds)
        if milliseconds > self._largest:
            self._largest = milliseconds
            self._max.set(milliseconds)


class PlainCounter:
    """A counter for what happens with every order: the library's own takes a lock, which costs ten times as much.

    Everything that counts here runs in the one event loop, and so does the answer to whoever asks.
    """

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self.count = 0
        registry.register(self)

    def inc(self) -> None:
        """Count one."""
        self.count += 1

    def collect(self) -> Iterator[Metric]:
        """What the registry shows."""
        yield CounterMetricFamily(self._name, self._text, value=self.count)


class CacheMetrics:
    """ports.cache.CacheWatch; whether a hit prevented a duplicate is not for the cache to say."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.hits = PlainCounter("idempotency_cache_hits_total", "Lookups that found their entry", registry)
        self.misses = PlainCounter("idempotency_cache_misses_total", "Lookups that found none", registry)
        self.errors = Counter("idempotency_cache_errors_total", "What went wrong, by kind", ["kind"], registry=registry)
        for kind in get_args(CacheError):
            self.errors.labels(kind)  # an alarm needs to see it rise from 0
        self.entries = 0
        Gauge("idempotency_cache_size", "Entries in the cache", registry=registry).set_function(lambda: self.entries)
        self.tracks_hits = True

    def looked_up(self, *, hit: bool) -> None:
        """A lookup ended."""
        if self.tracks_hits:
            (self.hits if hit else self.misses).inc()

    def failed(self, kind: CacheError) -> None:
        """Something went wrong, which no caller noticed."""
        self.errors.labels(kind).inc()

    def holds(self, entries: int) -> None:
        """So many entries are there."""
        self.entries = entries


class Metrics:
    """One process's metrics, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.accepted = PlainCounter("gateway_orders_accepted_total", "Orders accepted", registry)
        self.replayed = PlainCounter("gateway_orders_replayed_total", "Requests answered by their key", registry)
        self.placed = PlainCounter("orders_placed_total", "New orders, however they came in", registry)
        self.prevented = PlainCounter(
            "idempotency_duplicate_orders_prevented_total", "Repeats that made no second order", registry
        )
        self.collisions = Counter(
            "idempotency_collisions_total", "Different requests under one derived key", registry=registry
        )
        self.expired_reuse = Counter(
            "idempotency_expired_keys_reused_total", "Keys that began anew after their time", registry=registry
        )
        self.reaped = Counter("idempotency_keys_expired_total", "Keys removed after their time", registry=registry)
        self.key_generation = Histogram(
            "idempotency_key_generation_duration_ms",
            "Deriving a key",
            buckets=(0.1, 0.5, 1, 5, 10),
            registry=registry,
        )
        self.do_requests = Counter(
            "order_requests_total", "Answers of /do/order, by status", ["status"], registry=registry
        )
        self.do_conflicts = Counter(
            "order_idempotency_conflicts_total", "Keys of /do/order with another body", registry=registry
        )
        self.broker_latency = Histogram(
            "order_broker_latency_ms",
            "From /do/order to what the broker made of it",
            buckets=(1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000),
            registry=registry,
        )
        self.rejected = Counter(
            "gateway_requests_refused_total", "Requests refused, by reason", ["reason"], registry=registry
        )
        self.queue_rejects = Counter(
            "gateway_queue_rejects_total", "Changes rejected by a full queue", registry=registry
        )
        self.queue_depth = Gauge("gateway_queue_depth", "Changes that wait for the journal", registry=registry)
        self.group_size = Histogram(
            "journal_group_size",
            "Changes committed at once",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
            registry=registry,
        )
        self.accept_to_sent = LatencyMax(
            "gateway_accept_to_sent_latency_ms", "From accept to the venue's answer", registry
        )
        self.accept_to_report = LatencyMax(
            "gateway_accept_to_execution_report_latency_ms", "From accept to an execution report", registry
        )
        self.dequeued = Counter(
            "outbox_dequeue_total", "Looks for work, by what was found", ["result"], registry=registry
        )
        self.retries = Histogram(
            "outbox_retry_count",
            "Attempts after the first that a row took to its end",
            buckets=(0, 1, 2, 3, 4, 5, 6, 7, 8),
            registry=registry,
        )
        self.sends = Counter("outbox_send_total", "Sends, by outcome", ["outcome"], registry=registry)
        self.stale_writes = Counter(
            "outbox_stale_writes_total", "Outcomes of attempts that were not theirs any more", registry=registry
        )
        self.inflight = Gauge("outbox_inflight", "Sends under way in this process", registry=registry)
        self.outbox_rows = Gauge("outbox_rows", "Unfinished outbox rows, by status", ["status"], registry=registry)
        self.outbox_uncertain = Gauge("outbox_uncertain", "Outbox rows in doubt", registry=registry)
        self.outbox_lag = Histogram(
            "outbox_lag_seconds",
            "How long rows had waited when they were first taken up",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600),
            registry=registry,
        )
        self.outbox_oldest = Gauge(
            "outbox_oldest_seconds", "Age of the oldest row that waits to be sent", registry=registry
        )
        self.uncertain = Counter("orders_uncertain_total", "Orders that came into doubt", registry=registry)
        self.resolved = Counter(
            "orders_resolved_total", "Doubts settled, by what the venue had", ["verdict"], registry=registry
        )
        self.reports = Counter(
            "venue_reports_total", "Execution reports, by what became of them", ["result"], registry=registry
        )
        self.strays = Counter("venue_orders_unknown_total", "Open orders at venues, known to nobody", registry=registry)
        self.missed_reports = Counter(
            "venue_missed_reports_total",
            "Executions and ends that no report told of, found by asking",
            registry=registry,
        )
        self.orders_missing = Counter(
            "venue_orders_missing_total", "Open orders that their venue does not know any more", registry=registry
        )
        self.quantity_gaps = Counter(
            "venue_quantity_gaps_total",
            "Filled quantities that the venue's own fills cannot explain",
            registry=registry,
        )
        self.overfills = Counter("orders_overfilled_total", "Orders filled beyond their quantity", registry=registry)
        self.audit_seq = Gauge("audit_written_seq", "Journal number of the audit file's last line", registry=registry)
        self.audit_cuts = Counter("audit_file_cuts_total", "Times the audit file had lost lines", registry=registry)
        self.stream_readers = Gauge("sse_subscribers", "Open streams", registry=registry)
        self.stream_drops = Counter(
            "sse_slow_readers_total", "Streams closed because the reader lagged", registry=registry
        )
        self.stage_failures = Counter(
            "stage_failures_total", "Unexpected errors, by stage", ["stage"], registry=registry
        )
        self.cache = CacheMetrics(registry)
        self.redis_up = Gauge("redis_up", "0 while Redis is left alone because it does not answer", registry=registry)
        self.redis_up.set(1)
