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


class Registry(CollectorRegistry):
    """The metrics of one process, and how one is added."""

    def counter(self, name: str, text: str, *labels: str, values: Sequence[str] = ()) -> Counter:
        """`values` of its label are served from the start: an alert needs to see the first increase from 0."""
        made = Counter(name, text, labels, registry=self)
        for value in values:
            made.labels(value)
        return made

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """A value that goes up and down."""
        return Gauge(name, text, labels, registry=self)

    def histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float]) -> Histogram:
        """Values counted in buckets."""
        return Histogram(name, text, labels, buckets=buckets, registry=self)


class BackOfficeMetrics:
    """How far the books are, and whether they have stopped."""

    def __init__(self, new: Registry) -> None:
        self.seq = new.gauge("backoffice_seq", "Number of the last event that the books have read")
        self.lag = new.gauge("backoffice_lag_events", "Events that the books have not read yet")
        self.halted = new.gauge(
            "backoffice_halted", "1 if a source of events has stopped, because its history is not that of the books"
        )
        self.halted_accounts = new.gauge(
            "backoffice_halted_accounts",
            "Accounts whose events are not booked, because one is missing or cannot be booked",
        )
        self.entries = new.counter("backoffice_entries_total", "Entries booked")
        self.repeats = new.counter("backoffice_repeats_total", "Events dropped because they were read before")
        self.rejected = new.counter(
            "backoffice_rejected_messages",
            "Messages of the topic that were dropped, because this installation did not sign them",
            "reason",
            values=("unsigned", "signature"),
        )
        self.notes = new.counter(
            "backoffice_notes_total", "Notes on entries, such as a total that the fills do not explain"
        )


class BusMetrics:
    """How far the relay is, and whether it has stopped."""

    def __init__(self, new: Registry) -> None:
        self.lag_events = new.gauge("bus_lag_events", "Events of the journal that the brokers have not acknowledged")
        self.lag_seconds = new.gauge(
            "bus_lag_seconds", "Age of the oldest event that the brokers have not acknowledged"
        )
        self.delivery_errors = new.counter(
            "bus_delivery_errors_total",
            "Failures of the relay at the brokers: rejected messages, a missing topic, lost connections",
        )
        self.in_flight = new.gauge(
            "bus_in_flight", "Events handed to the producer of this process and not acknowledged"
        )
        self.published = new.counter(
            "bus_published_total", "Events that the brokers have acknowledged, repeats included"
        )
        self.active = new.gauge("bus_relay_active", "1 in the process that publishes, 0 in those that stand by")
        self.halted = new.gauge(
            "bus_relay_halted", "1 if the relay has stopped because the journal is not the one it read"
        )


class KillMetrics:
    """How many kills are active, and what they did in this process."""

    def __init__(self, new: Registry) -> None:
        self.active = new.gauge("kill_switch_active", "Active kills known to this process")
        self.cancels = new.counter("kill_switch_cancels_total", "Open orders cancelled or ended because of a kill")
        self.ids_exceeded = new.counter(
            "sent_ids_exceeded_total", "Times that more client order ids left than orders were accepted"
        )
        self.blocked = new.counter(
            "kill_switch_blocked_total",
            "Attempts that a kill stopped, by place: in the commit (attempt) or before the wire (send)",
            "place",
            values=("attempt", "send"),
        )


class EndedRechecks:
    """`pdca_rechecks_total`, as the store counts it: a command that Airflow runs is never scraped."""

    def __init__(self, new: Registry) -> None:
        self._counts = {"succeeded": 0, "failed": 0}
        new.register(self)

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

    def __init__(self, new: Registry) -> None:
        self.ended = EndedRechecks(new)
        self.interrupted = new.counter(
            "pdca_rechecks_interrupted_total",
            "Rechecks that did not end in this process, by cause",
            "cause",
            values=("database_away", "claimed_by_another"),
        )
        self.seconds = new.histogram(
            "pdca_recheck_seconds", "Time to recheck one strategy", buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300)
        )
        self.stuck_runs = new.gauge(
            "pdca_runs_queued_too_long", "Runs that the runner has had in its queue for too long"
        )
        self.unsubmitted = new.gauge(
            "pdca_runs_not_submitted", "Accepted rechecks that the runner could not be told of yet"
        )
        self.airflow = new.counter(
            "airflow_adapter_requests_total", "Requests to Airflow, by endpoint and outcome", "endpoint", "outcome"
        )


class PdcaMetrics:
    """Requests by endpoint and outcome, and how long they took."""

    def __init__(self, new: Registry) -> None:
        self.requests = new.counter(
            "pdca_api_requests_total",
            "Requests to the PDCA API, by endpoint and outcome: ok, replayed, or the error's code",
            "endpoint",
            "outcome",
        )
        self.latency = new.histogram(
            "pdca_api_latency_ms",
            "Time to answer a request to the PDCA API, by endpoint",
            "endpoint",
            buckets=(1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000),
        )
        self.conflicts = new.counter(
            "pdca_api_idempotency_conflicts_total", "Rechecks with a used key and another body"
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

    def __init__(self, new: Registry) -> None:
        self.hits = PlainCounter("idempotency_cache_hits_total", "Cache lookups that found an entry", new)
        self.misses = PlainCounter("idempotency_cache_misses_total", "Cache lookups that found no entry", new)
        self.errors = new.counter(
            "idempotency_cache_errors_total", "Cache errors, by kind", "kind", values=get_args(CacheError)
        )
        self.entries = 0
        new.gauge("idempotency_cache_size", "Entries in the cache").set_function(lambda: self.entries)
        self.tracks_hits = True
        self.expirations = new.counter("idempotency_cache_expirations_total", "Cache entries removed after their time")
        self.by_status = new.gauge(
            "idempotency_cache_entries", "Entries in the cache that have not expired, by status", "status"
        )
        self.expired_entries = new.gauge(
            "idempotency_cache_expired_entries", "Expired entries that are still in the cache"
        )
        self.oldest = new.gauge("idempotency_cache_oldest_seconds", "Age of the oldest entry in the cache")
        self.hit_rate = new.gauge("idempotency_cache_hit_rate", "Cache hits divided by lookups, since the start")
        self.memory = new.gauge("redis_memory_bytes", "Memory that the Redis server uses")

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

    def __init__(self, new: Registry) -> None:
        ProcessCollector(registry=new)
        self.info = new.gauge("switchyard_info", "1, with version and role", "version", "role")
        self.journal_up = new.gauge("journal_up", "0 if the last read of the journal's database failed, else 1")
        self.journal_up.set(1)
        self.revoked_tokens_up = new.gauge(
            "revoked_tokens_up",
            "0 if the newest list of revoked tokens cannot be read, else 1; an older list is in use meanwhile",
        )
        self.revoked_tokens_up.set(1)
        self.journal_seq = new.gauge("journal_seq", "Number of the journal's last event")
        self.audit_lag = new.gauge("audit_lag_events", "Events that the audit file of this process does not have yet")
        self.disk_free = new.gauge("disk_free_bytes", "Free space of the file system of a folder", "folder")
        self.disk_size = new.gauge("disk_size_bytes", "Size of the file system of a folder", "folder")
        self.clock_skew = new.gauge("clock_skew_seconds", "This machine's wall clock minus the time in use")
        self.clock_offset = new.gauge(
            "clock_offset_seconds", "This machine's wall clock minus that of the database or of a venue", "against"
        )

    def describe(self, role: str) -> None:
        """Set the version and the role."""
        self.info.labels(__version__, role).set(1)


class ReconcileMetrics:
    """Breaks, and how old the last comparison is."""

    def __init__(self, new: Registry) -> None:
        self.breaks = new.gauge("backoffice_breaks", "Breaks that are not closed, by class and state", "class", "state")
        self.age = new.gauge(
            "backoffice_reconcile_age_seconds",
            "Seconds since the last complete pass of the reconciliation, or since the start",
        )
        self.interval = new.gauge(
            "backoffice_reconcile_interval_seconds",
            "Pause between two passes of the reconciliation; 0 where this process makes none",
        )
        self.not_compared = new.gauge(
            "backoffice_not_compared",
            "Comparisons that the last pass could not make, such as a venue that did not answer",
        )


class RoutingMetrics:
    """Part of `Metrics`."""

    def __init__(self, new: Registry) -> None:
        self.breaker_state = new.gauge(
            "venue_breaker_state", "The venue's circuit breaker: 0 closed, 1 half open, 2 open", "venue"
        )
        self.breaker_opened = new.counter(
            "venue_breaker_opened_total", "Times that the venue's circuit breaker opened", "venue"
        )
        self.failovers = new.counter(
            "venue_failovers_total", "Orders that were never sent and went to another venue", "from_venue", "to_venue"
        )
        self.switch_armed = new.gauge(
            "venue_switch_set",
            "1 while the venue is known to cancel all orders without a renewal (VENUE_CANCEL_ALL_AFTER_)",
            "venue",
        )
        self.switch_renewals_failed = new.counter(
            "venue_switch_renewals_failed_total", "Renewals of that time that the venue has not acknowledged", "venue"
        )
        self.rate_waits = new.counter(
            "venue_rate_waits_total",
            "Times that sending to the venue waited for its rate limit (VENUE_RATE_PER_SEC_)",
            "venue",
        )


class TraceMetrics:
    """Part of `Metrics`; 0 where traces are off."""

    def __init__(self, new: Registry) -> None:
        self.exported = new.counter("traces_spans_exported_total", "Spans that the collector has taken")
        self.dropped = new.counter(
            "traces_spans_dropped_total",
            "Spans that were not exported: the queue was full, the collector did not take them, or the process ended",
            "reason",
            values=("queue_full", "export_failed", "stopped"),
        )


# A second series for every counter, with the time of its creation, that no query here uses.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        new = self.registry = Registry()
        self.process = ProcessMetrics(new)
        self.accepted = PlainCounter("gateway_orders_accepted_total", "Orders accepted", new)
        self.replayed = PlainCounter(
            "gateway_orders_replayed_total", "Requests answered with an earlier order, by idempotency key", new
        )
        self.kills = KillMetrics(new)
        self.backoffice = BackOfficeMetrics(new)
        self.bus = BusMetrics(new)
        self.traces = TraceMetrics(new)
        self.reconcile = ReconcileMetrics(new)
        self.routing = RoutingMetrics(new)
        self.pdca = PdcaMetrics(new)
        self.rechecks = PdcaJobMetrics(new)
        self.placed = PlainCounter("orders_placed_total", "New orders of all interfaces", new)
        self.prevented = PlainCounter(
            "idempotency_duplicate_orders_prevented_total", "Repeated requests that created no second order", new
        )
        self.collisions = new.counter("idempotency_collisions_total", "Different orders with the same derived key")
        self.expired_reuse = new.counter(
            "idempotency_expired_keys_reused_total", "Expired keys that were used for a new order"
        )
        self.reaped = new.counter("idempotency_keys_expired_total", "Expired keys removed")
        self.key_generation = new.histogram(
            "idempotency_key_generation_duration_ms", "Time to derive a key", buckets=(0.1, 0.5, 1, 5, 10)
        )
        self.risk_rejections = new.counter(
            "risk_rejections_total", "Orders that a pre-trade check rejected, by reason", "reason"
        )
        self.reserved_orders = new.gauge(
            "risk_reserved_orders", "Open orders that reserve room under the limits, by settlement currency", "currency"
        )
        self.reserved_notional = new.gauge(
            "risk_reserved_notional", "Notional that open orders reserve, by settlement currency", "currency"
        )
        self.do_requests = new.counter("order_requests_total", "Responses of /do/order, by status", "status")
        self.do_conflicts = new.counter(
            "order_idempotency_conflicts_total", "Requests to /do/order with a used key and another body"
        )
        self.broker_latency = new.histogram(
            "order_broker_latency_ms",
            "Time from /do/order to the broker's outcome",
            buckets=(1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000),
        )
        self.rejected = new.counter("gateway_requests_refused_total", "Requests rejected, by reason", "reason")
        self.queue_rejects = new.counter("gateway_queue_rejects_total", "Changes rejected because the queue was full")
        self.queue_depth = new.gauge("gateway_queue_depth", "Changes waiting for the journal")
        self.window_orders = new.gauge(
            "admission_window_orders",
            "Orders that this process has accepted and that their venue has not answered, of the last second",
            "venue",
        )
        self.window_waiting = new.gauge("admission_waiting_requests", "New orders that wait to be accepted", "venue")
        self.window_turned_away = new.counter(
            "admission_turned_away_total",
            "Requests for new orders rejected before their body was read, because too many of the account wait already",
        )
        self.window_rejects = new.counter(
            "admission_rejects_total", "New orders rejected after they waited to be accepted", "venue"
        )
        self.group_size = PlainHistogram(
            "journal_group_size",
            "Changes per group commit",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
            registry=new,
        )
        self.accept_to_sent = LatencyMax(
            "gateway_accept_to_sent_latency_ms", "Time from accept to the venue's response", new
        )
        self.accept_to_report = LatencyMax(
            "gateway_accept_to_execution_report_latency_ms", "Time from accept to an execution report", new
        )
        self.dequeued = new.counter("outbox_dequeue_total", "Outbox polls, by result", "result")
        self.retries = PlainHistogram(
            "outbox_retry_count",
            "Attempts after the first, per finished row",
            buckets=(0, 1, 2, 3, 4, 5, 6, 7, 8),
            registry=new,
        )
        self.sends = new.counter(
            "outbox_send_total",
            "Outbox rows that moved, by outcome",
            "outcome",
            values=("success", "retry", "dead", "uncertain", "conflict_processed"),
        )
        self.stale_writes = new.counter(
            "outbox_stale_writes_total", "Outcomes not written because the row had a newer version"
        )
        self.inflight = new.gauge("outbox_inflight", "Sends in progress in this process")
        self.outbox_rows = new.gauge("outbox_rows", "Unfinished outbox rows, by status", "status")
        self.outbox_uncertain = new.gauge("outbox_uncertain", "Uncertain outbox rows")
        self.outbox_uncertain_by_age = new.gauge(
            "outbox_uncertain_by_age",
            "Outbox rows in doubt whose last attempt is at least this many seconds ago",
            "seconds",
        )
        self.outbox_sending_by_age = new.gauge(
            "outbox_sending_by_age", "Attempts without an outcome for at least this many seconds", "seconds"
        )
        self.outbox_lag = PlainHistogram(
            "outbox_lag_seconds",
            "Age of rows at their first attempt",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600),
            registry=new,
        )
        self.outbox_oldest = new.gauge("outbox_oldest_seconds", "Age of the oldest row waiting to be sent")
        self.uncertain = new.counter("orders_uncertain_total", "Orders that became uncertain")
        self.resolved = new.counter(
            "orders_resolved_total",
            "Uncertain orders resolved, by verdict",
            "verdict",
            values=("found", "absent", "reported"),
        )
        self.venue_answering = new.gauge(
            "venue_answering_seconds", "Time for which the venue has answered every probe within a second", "venue"
        )
        self.quote_polls = new.counter(
            "quote_polls_total", "Requests for quotes to venues, by outcome", "venue", "outcome"
        )
        self.quotes_unusable = new.counter(
            "quotes_unusable_total", "Quotes that were not used: crossed, unreadable or from the future", "venue"
        )
        self.quotes_missing = new.counter(
            "quotes_missing_total", "Looks at a venue's quote that found none, or a stale one", "venue"
        )
        self.reports = new.counter(
            "venue_reports_total",
            "Execution reports, by result",
            "result",
            values=("applied", "duplicate", "unmatched", "set_aside", "other_venue"),
        )
        self.strays = new.counter("venue_orders_unknown_total", "Open orders at venues that are not in the journal")
        self.missed_reports = new.counter(
            "venue_missed_reports_total", "Executions and final states found by lookup, without a report"
        )
        self.orders_missing = new.counter("venue_orders_missing_total", "Open orders that their venue no longer has")
        self.ended_open = new.counter(
            "venue_ended_orders_open_total",
            "Orders that have ended here and that their venue shows open, by venue",
            "venue",
        )
        self.quantity_gaps = new.counter(
            "venue_quantity_gaps_total", "Filled quantities that do not match the venue's own fills"
        )
        self.contradictions = new.counter(
            "venue_contradictions_total",
            "Rejections of orders that the venue has shown to have, and lookups that show other terms, by venue",
            "venue",
        )
        self.unasked_responses = new.counter(
            "venue_unasked_responses_total",
            "Connections on which a broker sent something that was not asked for, by venue",
            "venue",
        )
        self.reused_execution_ids = new.counter(
            "venue_execution_ids_reused_total", "Execution ids that a venue used for more than one order"
        )
        self.report_reads_failed = new.counter(
            "venue_report_reads_failed_total", "Failed reads of execution reports, by venue", "venue"
        )
        self.report_restarts = new.counter(
            "venue_report_numbers_restarted_total",
            "Times that a venue numbered its reports from the start again, by venue",
            "venue",
        )
        self.cancels_repeated = new.counter(
            "venue_cancels_repeated_total", "Cancels sent again because the order stayed open"
        )
        self.cancels_ignored = new.counter(
            "venue_cancels_ignored_total", "Orders that stay open after the last repeated cancel"
        )
        self.venue_state = new.gauge("venue_state", "1 if orders are sent to the venue, 0 while it is closed", "venue")
        self.credential_paused = new.gauge(
            "venue_credential_paused",
            "1 while the venue rejects its credential, so that nothing is sent with it",
            "venue",
        )
        self.secrets_unreadable = new.gauge(
            "venue_secrets_unreadable", "1 while a file with secrets of the venue cannot be read", "venue"
        )
        self.overfills = new.counter("orders_overfilled_total", "Orders filled beyond their quantity")
        self.copy_evidence = new.counter(
            "venue_copy_evidence_total",
            "Signs that a second installation sends to the venue from a copy of the database, by venue",
            "venue",
            "evidence",
        )
        self.lease_lost = new.gauge(
            "installation_lease_lost", "1 while another copy of the database holds the lease of this installation"
        )
        self.audit_seq = new.gauge("audit_written_seq", "Journal number of the audit file's last line")
        self.audit_cuts = new.counter("audit_file_cuts_total", "Times that lines were missing at the audit file's end")
        self.stream_readers = new.gauge("sse_subscribers", "Open streams")
        self.stream_drops = new.counter("sse_slow_readers_total", "Streams closed because their reader was too slow")
        self.connections_rejected = PlainCounter(
            "http_connections_rejected_total", "Connections rejected because there were too many", new
        )
        self.clock_step = new.gauge(
            "clock_step_seconds",
            "The database's wall clock minus the time in use; beyond 1 s, the wall clock was stepped",
        )
        self.stage_failures = new.counter("stage_failures_total", "Unexpected errors, by stage", "stage")
        self.cache = CacheMetrics(new)
        self.redis_up = new.gauge("redis_up", "1 if Redis is used, 0 while it is skipped after failures")
        self.redis_up.set(1)
