"""Every metric of Switchyard, by subject. Names of the seeds have underscores for dots.

Metrics of the path of an order are plain Python objects that are collected when `/metrics` is read: the library's
own take four calls for each increment.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import get_args

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.utils import floatToGoString

from switchyard import __version__
from switchyard.ports.cache import CacheError, CacheStats, CacheStatus


class BackOfficeMetrics:
    """How far the books are, and whether they have stopped."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seq = Gauge("backoffice_seq", "Number of the last event that the books have read", registry=registry)
        self.lag = Gauge("backoffice_lag_events", "Events that the books have not read yet", registry=registry)
        self.halted = Gauge(
            "backoffice_halted",
            "1 if a source of events has stopped, because its history is not that of the books",
            registry=registry,
        )
        self.halted_accounts = Gauge(
            "backoffice_halted_accounts",
            "Accounts whose events are not booked, because one is missing or cannot be booked",
            registry=registry,
        )
        self.entries = Counter("backoffice_entries_total", "Entries booked", registry=registry)
        self.repeats = Counter(
            "backoffice_repeats_total", "Events dropped because they were read before", registry=registry
        )
        self.rejected = Counter(
            "backoffice_rejected_messages",
            "Messages of the topic that were dropped, because this installation did not sign them",
            ["reason"],
            registry=registry,
        )
        for reason in ("unsigned", "signature"):
            self.rejected.labels(reason)
        self.notes = Counter(
            "backoffice_notes_total",
            "Notes on entries, such as a total that the fills do not explain",
            registry=registry,
        )


class BusMetrics:
    """How far the relay is, and whether it has stopped."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.lag_events = Gauge(
            "bus_lag_events", "Events of the journal that the brokers have not acknowledged", registry=registry
        )
        self.lag_seconds = Gauge(
            "bus_lag_seconds", "Age of the oldest event that the brokers have not acknowledged", registry=registry
        )
        self.delivery_errors = Counter(
            "bus_delivery_errors_total",
            "Failures of the relay at the brokers: rejected messages, a missing topic, lost connections",
            registry=registry,
        )
        self.in_flight = Gauge(
            "bus_in_flight", "Events handed to the producer of this process and not acknowledged", registry=registry
        )
        self.published = Counter(
            "bus_published_total", "Events that the brokers have acknowledged, repeats included", registry=registry
        )
        self.active = Gauge(
            "bus_relay_active", "1 in the process that publishes, 0 in those that stand by", registry=registry
        )
        self.halted = Gauge(
            "bus_relay_halted",
            "1 if the relay has stopped because the journal is not the one it read",
            registry=registry,
        )


class KillMetrics:
    """How many kills are active, and what they did in this process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.active = Gauge("kill_switch_active", "Active kills known to this process", registry=registry)
        self.cancels = Counter(
            "kill_switch_cancels_total", "Open orders cancelled or ended because of a kill", registry=registry
        )
        self.ids_exceeded = Counter(
            "sent_ids_exceeded_total",
            "Times that more client order ids left than orders were accepted",
            registry=registry,
        )
        self.blocked = Counter(
            "kill_switch_blocked_total",
            "Attempts that a kill stopped, by place: in the commit (attempt) or before the wire (send)",
            ["place"],
            registry=registry,
        )
        for place in ("attempt", "send"):
            self.blocked.labels(place)  # a dashboard shows it from the start


class EndedRechecks:
    """`pdca_rechecks_total`, as the store counts it: a command that Airflow runs is never scraped."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counts = {"succeeded": 0, "failed": 0}
        registry.register(self)

    def show(self, *, succeeded: int, failed: int) -> None:
        """Serve these counts from now on."""
        self._counts = {"succeeded": succeeded, "failed": failed}

    def collect(self) -> Iterator[Metric]:
        """The current counts, for the registry."""
        family = CounterMetricFamily(
            "pdca_rechecks_total", "Rechecks of strategies that have ended, by outcome", labels=["outcome"]
        )
        for outcome, count in self._counts.items():
            family.add_metric([outcome], count)
        yield family


class PdcaJobMetrics:
    """What became of rechecks, and how the runner answers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.ended = EndedRechecks(registry)
        self.interrupted = Counter(
            "pdca_rechecks_interrupted_total",
            "Rechecks that did not end in this process, by cause",
            ["cause"],
            registry=registry,
        )
        for cause in ("database_away", "claimed_by_another"):
            self.interrupted.labels(cause)  # an alert needs to see the first increase from 0
        self.seconds = Histogram(
            "pdca_recheck_seconds",
            "Time to recheck one strategy",
            buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300),
            registry=registry,
        )
        self.stuck_runs = Gauge(
            "pdca_runs_queued_too_long", "Runs that the runner has had in its queue for too long", registry=registry
        )
        self.unsubmitted = Gauge(
            "pdca_runs_not_submitted", "Accepted rechecks that the runner could not be told of yet", registry=registry
        )
        self.airflow = Counter(
            "airflow_adapter_requests_total",
            "Requests to Airflow, by endpoint and outcome",
            ["endpoint", "outcome"],
            registry=registry,
        )


class PdcaMetrics:
    """Requests by endpoint and outcome, and how long they took."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "pdca_api_requests_total",
            "Requests to the PDCA API, by endpoint and outcome: ok, replayed, or the error's code",
            ["endpoint", "outcome"],
            registry=registry,
        )
        self.latency = Histogram(
            "pdca_api_latency_ms",
            "Time to answer a request to the PDCA API, by endpoint",
            ["endpoint"],
            buckets=(1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000),
            registry=registry,
        )
        self.conflicts = Counter(
            "pdca_api_idempotency_conflicts_total",
            "Rechecks with a used key and another body",
            registry=registry,
        )


class LatencyMax:
    """`<name>_sum`, `<name>_count` and `<name>_max` of a latency in milliseconds."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._sum = self._largest = 0.0
        self._count = 0
        registry.register(self)

    def observe(self, milliseconds: float) -> None:
        """Record one latency."""
        self._sum += milliseconds
        self._count += 1
        if milliseconds > self._largest:
            self._largest = milliseconds

    def collect(self) -> Iterator[Metric]:
        """The current values, for the registry."""
        yield SummaryMetricFamily(self._name, self._text, count_value=self._count, sum_value=self._sum)
        yield GaugeMetricFamily(self._name + "_max", self._text + " (largest so far)", value=self._largest)


class PlainHistogram:
    """A histogram with fixed buckets."""

    def __init__(self, name: str, text: str, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._bounds = list(buckets)
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        """Record one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        """The current values, for the registry."""
        labels = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(labels, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)


class PlainCounter:
    """A counter without labels."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self.count = 0
        registry.register(self)

    def inc(self) -> None:
        """Count one."""
        self.count += 1

    def collect(self) -> Iterator[Metric]:
        """The current value, for the registry."""
        yield CounterMetricFamily(self._name, self._text, value=self.count)


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


class ProcessMetrics:
    """Part of `Metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        ProcessCollector(registry=registry)
        self.info = Gauge("switchyard_info", "1, with version and role", ["version", "role"], registry=registry)
        self.journal_up = Gauge(
            "journal_up", "0 if the last read of the journal's database failed, else 1", registry=registry
        )
        self.journal_up.set(1)
        self.revoked_tokens_up = Gauge(
            "revoked_tokens_up",
            "0 if the newest list of revoked tokens cannot be read, else 1; an older list is in use meanwhile",
            registry=registry,
        )
        self.revoked_tokens_up.set(1)
        self.journal_seq = Gauge("journal_seq", "Number of the journal's last event", registry=registry)
        self.audit_lag = Gauge(
            "audit_lag_events", "Events that the audit file of this process does not have yet", registry=registry
        )
        self.disk_free = Gauge(
            "disk_free_bytes", "Free space of the file system of a folder", ["folder"], registry=registry
        )
        self.disk_size = Gauge("disk_size_bytes", "Size of the file system of a folder", ["folder"], registry=registry)
        self.clock_skew = Gauge(
            "clock_skew_seconds", "This machine's wall clock minus the time in use", registry=registry
        )
        self.clock_offset = Gauge(
            "clock_offset_seconds",
            "This machine's wall clock minus that of the database or of a venue",
            ["against"],
            registry=registry,
        )

    def describe(self, role: str) -> None:
        """Set the version and the role."""
        self.info.labels(__version__, role).set(1)


class ReconcileMetrics:
    """Breaks, and how old the last comparison is."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.breaks = Gauge(
            "backoffice_breaks", "Breaks that are not closed, by class and state", ["class", "state"], registry=registry
        )
        self.age = Gauge(
            "backoffice_reconcile_age_seconds",
            "Seconds since the last complete pass of the reconciliation, or since the start",
            registry=registry,
        )
        self.interval = Gauge(
            "backoffice_reconcile_interval_seconds",
            "Pause between two passes of the reconciliation; 0 where this process makes none",
            registry=registry,
        )
        self.not_compared = Gauge(
            "backoffice_not_compared",
            "Comparisons that the last pass could not make, such as a venue that did not answer",
            registry=registry,
        )


class RoutingMetrics:
    """Part of `Metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.breaker_state = Gauge(
            "venue_breaker_state",
            "The venue's circuit breaker: 0 closed, 1 half open, 2 open",
            ["venue"],
            registry=registry,
        )
        self.breaker_opened = Counter(
            "venue_breaker_opened_total", "Times that the venue's circuit breaker opened", ["venue"], registry=registry
        )
        self.failovers = Counter(
            "venue_failovers_total",
            "Orders that were never sent and went to another venue",
            ["from_venue", "to_venue"],
            registry=registry,
        )
        self.rate_waits = Counter(
            "venue_rate_waits_total",
            "Times that sending to the venue waited for its rate limit (VENUE_RATE_PER_SEC_)",
            ["venue"],
            registry=registry,
        )


class TraceMetrics:
    """Part of `Metrics`; 0 where traces are off."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.exported = Counter("traces_spans_exported_total", "Spans that the collector has taken", registry=registry)
        self.dropped = Counter(
            "traces_spans_dropped_total",
            "Spans that were not exported: the queue was full, the collector did not take them, or the process ended",
            ["reason"],
            registry=registry,
        )
        for reason in ("queue_full", "export_failed", "stopped"):
            self.dropped.labels(reason)  # so that an increase is seen from 0 on


# A second series for every counter, with the time of its creation, that no query here uses.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.process = ProcessMetrics(registry)
        self.accepted = PlainCounter("gateway_orders_accepted_total", "Orders accepted", registry)
        self.replayed = PlainCounter(
            "gateway_orders_replayed_total", "Requests answered with an earlier order, by idempotency key", registry
        )
        self.kills = KillMetrics(registry)
        self.backoffice = BackOfficeMetrics(registry)
        self.bus = BusMetrics(registry)
        self.traces = TraceMetrics(registry)
        self.reconcile = ReconcileMetrics(registry)
        self.routing = RoutingMetrics(registry)
        self.pdca = PdcaMetrics(registry)
        self.rechecks = PdcaJobMetrics(registry)
        self.placed = PlainCounter("orders_placed_total", "New orders of all interfaces", registry)
        self.prevented = PlainCounter(
            "idempotency_duplicate_orders_prevented_total", "Repeated requests that created no second order", registry
        )
        self.collisions = Counter(
            "idempotency_collisions_total", "Different orders with the same derived key", registry=registry
        )
        self.expired_reuse = Counter(
            "idempotency_expired_keys_reused_total", "Expired keys that were used for a new order", registry=registry
        )
        self.reaped = Counter("idempotency_keys_expired_total", "Expired keys removed", registry=registry)
        self.key_generation = Histogram(
            "idempotency_key_generation_duration_ms",
            "Time to derive a key",
            buckets=(0.1, 0.5, 1, 5, 10),
            registry=registry,
        )
        self.risk_rejections = Counter(
            "risk_rejections_total", "Orders that a pre-trade check rejected, by reason", ["reason"], registry=registry
        )
        self.reserved_orders = Gauge(
            "risk_reserved_orders",
            "Open orders that reserve room under the limits, by settlement currency",
            ["currency"],
            registry=registry,
        )
        self.reserved_notional = Gauge(
            "risk_reserved_notional",
            "Notional that open orders reserve, by settlement currency",
            ["currency"],
            registry=registry,
        )
        self.do_requests = Counter(
            "order_requests_total", "Responses of /do/order, by status", ["status"], registry=registry
        )
        self.do_conflicts = Counter(
            "order_idempotency_conflicts_total",
            "Requests to /do/order with a used key and another body",
            registry=registry,
        )
        self.broker_latency = Histogram(
            "order_broker_latency_ms",
            "Time from /do/order to the broker's outcome",
            buckets=(1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000),
            registry=registry,
        )
        self.rejected = Counter(
            "gateway_requests_refused_total", "Requests rejected, by reason", ["reason"], registry=registry
        )
        self.queue_rejects = Counter(
            "gateway_queue_rejects_total", "Changes rejected because the queue was full", registry=registry
        )
        self.queue_depth = Gauge("gateway_queue_depth", "Changes waiting for the journal", registry=registry)
        self.window_orders = Gauge(
            "admission_window_orders",
            "Orders that this process has accepted and that their venue has not answered, of the last second",
            ["venue"],
            registry=registry,
        )
        self.window_waiting = Gauge(
            "admission_waiting_requests", "New orders that wait to be accepted", ["venue"], registry=registry
        )
        self.window_turned_away = Counter(
            "admission_turned_away_total",
            "Requests for new orders rejected before their body was read, because too many of the account wait already",
            registry=registry,
        )
        self.window_rejects = Counter(
            "admission_rejects_total",
            "New orders rejected after they waited to be accepted",
            ["venue"],
            registry=registry,
        )
        self.group_size = PlainHistogram(
            "journal_group_size",
            "Changes per group commit",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
            registry=registry,
        )
        self.accept_to_sent = LatencyMax(
            "gateway_accept_to_sent_latency_ms", "Time from accept to the venue's response", registry
        )
        self.accept_to_report = LatencyMax(
            "gateway_accept_to_execution_report_latency_ms", "Time from accept to an execution report", registry
        )
        self.dequeued = Counter("outbox_dequeue_total", "Outbox polls, by result", ["result"], registry=registry)
        self.retries = PlainHistogram(
            "outbox_retry_count",
            "Attempts after the first, per finished row",
            buckets=(0, 1, 2, 3, 4, 5, 6, 7, 8),
            registry=registry,
        )
        self.sends = Counter(
            "outbox_send_total",
            "Outbox rows that moved, by outcome",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("success", "retry", "dead", "uncertain", "conflict_processed"):
            self.sends.labels(outcome)  # an alert needs to see the first increase from 0
        self.stale_writes = Counter(
            "outbox_stale_writes_total", "Outcomes not written because the row had a newer version", registry=registry
        )
        self.inflight = Gauge("outbox_inflight", "Sends in progress in this process", registry=registry)
        self.outbox_rows = Gauge("outbox_rows", "Unfinished outbox rows, by status", ["status"], registry=registry)
        self.outbox_uncertain = Gauge("outbox_uncertain", "Uncertain outbox rows", registry=registry)
        self.outbox_uncertain_by_age = Gauge(
            "outbox_uncertain_by_age",
            "Outbox rows in doubt whose last attempt is at least this many seconds ago",
            ["seconds"],
            registry=registry,
        )
        self.outbox_sending_by_age = Gauge(
            "outbox_sending_by_age",
            "Attempts without an outcome for at least this many seconds",
            ["seconds"],
            registry=registry,
        )
        self.outbox_lag = PlainHistogram(
            "outbox_lag_seconds",
            "Age of rows at their first attempt",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600),
            registry=registry,
        )
        self.outbox_oldest = Gauge(
            "outbox_oldest_seconds", "Age of the oldest row waiting to be sent", registry=registry
        )
        self.uncertain = Counter("orders_uncertain_total", "Orders that became uncertain", registry=registry)
        self.resolved = Counter(
            "orders_resolved_total", "Uncertain orders resolved, by verdict", ["verdict"], registry=registry
        )
        for verdict in ("found", "absent", "reported"):
            self.resolved.labels(verdict)  # a dashboard needs to see the first increase from 0
        self.venue_answering = Gauge(
            "venue_answering_seconds",
            "Time for which the venue has answered every probe within a second",
            ["venue"],
            registry=registry,
        )
        self.quote_polls = Counter(
            "quote_polls_total", "Requests for quotes to venues, by outcome", ["venue", "outcome"], registry=registry
        )
        self.quotes_unusable = Counter(
            "quotes_unusable_total",
            "Quotes that were not used: crossed, unreadable or from the future",
            ["venue"],
            registry=registry,
        )
        self.quotes_missing = Counter(
            "quotes_missing_total",
            "Looks at a venue's quote that found none, or a stale one",
            ["venue"],
            registry=registry,
        )
        self.reports = Counter("venue_reports_total", "Execution reports, by result", ["result"], registry=registry)
        for result in ("applied", "duplicate", "unmatched", "set_aside", "other_venue"):
            self.reports.labels(result)
        self.strays = Counter(
            "venue_orders_unknown_total", "Open orders at venues that are not in the journal", registry=registry
        )
        self.missed_reports = Counter(
            "venue_missed_reports_total",
            "Executions and final states found by lookup, without a report",
            registry=registry,
        )
        self.orders_missing = Counter(
            "venue_orders_missing_total", "Open orders that their venue no longer has", registry=registry
        )
        self.ended_open = Counter(
            "venue_ended_orders_open_total",
            "Orders that have ended here and that their venue shows open, by venue",
            ["venue"],
            registry=registry,
        )
        self.quantity_gaps = Counter(
            "venue_quantity_gaps_total",
            "Filled quantities that do not match the venue's own fills",
            registry=registry,
        )
        self.contradictions = Counter(
            "venue_contradictions_total",
            "Rejections of orders that the venue has shown to have, and lookups that show other terms, by venue",
            ["venue"],
            registry=registry,
        )
        self.unasked_responses = Counter(
            "venue_unasked_responses_total",
            "Connections on which a broker sent something that was not asked for, by venue",
            ["venue"],
            registry=registry,
        )
        self.reused_execution_ids = Counter(
            "venue_execution_ids_reused_total",
            "Execution ids that a venue used for more than one order",
            registry=registry,
        )
        self.report_reads_failed = Counter(
            "venue_report_reads_failed_total",
            "Failed reads of execution reports, by venue",
            ["venue"],
            registry=registry,
        )
        self.report_restarts = Counter(
            "venue_report_numbers_restarted_total",
            "Times that a venue numbered its reports from the start again, by venue",
            ["venue"],
            registry=registry,
        )
        self.cancels_repeated = Counter(
            "venue_cancels_repeated_total", "Cancels sent again because the order stayed open", registry=registry
        )
        self.cancels_ignored = Counter(
            "venue_cancels_ignored_total", "Orders that stay open after the last repeated cancel", registry=registry
        )
        self.venue_state = Gauge(
            "venue_state", "1 if orders are sent to the venue, 0 while it is closed", ["venue"], registry=registry
        )
        self.overfills = Counter("orders_overfilled_total", "Orders filled beyond their quantity", registry=registry)
        self.copy_evidence = Counter(
            "venue_copy_evidence_total",
            "Signs that a second installation sends to the venue from a copy of the database, by venue",
            ["venue", "evidence"],
            registry=registry,
        )
        self.lease_lost = Gauge(
            "installation_lease_lost",
            "1 while another copy of the database holds the lease of this installation",
            registry=registry,
        )
        self.audit_seq = Gauge("audit_written_seq", "Journal number of the audit file's last line", registry=registry)
        self.audit_cuts = Counter(
            "audit_file_cuts_total", "Times that lines were missing at the audit file's end", registry=registry
        )
        self.stream_readers = Gauge("sse_subscribers", "Open streams", registry=registry)
        self.stream_drops = Counter(
            "sse_slow_readers_total", "Streams closed because their reader was too slow", registry=registry
        )
        self.connections_rejected = PlainCounter(
            "http_connections_rejected_total", "Connections rejected because there were too many", registry
        )
        self.clock_step = Gauge(
            "clock_step_seconds",
            "The database's wall clock minus the time in use; beyond 1 s, the wall clock was stepped",
            registry=registry,
        )
        self.stage_failures = Counter(
            "stage_failures_total", "Unexpected errors, by stage", ["stage"], registry=registry
        )
        self.cache = CacheMetrics(registry)
        self.redis_up = Gauge("redis_up", "1 if Redis is used, 0 while it is skipped after failures", registry=registry)
        self.redis_up.set(1)
