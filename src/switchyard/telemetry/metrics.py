"""The metrics of a process, under the names in the specifications. Stages count; the HTTP layer reads the registry."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from switchyard.telemetry.backoffice_metrics import BackOfficeMetrics
from switchyard.telemetry.bus_metrics import BusMetrics
from switchyard.telemetry.cache_metrics import CacheMetrics
from switchyard.telemetry.kill_metrics import KillMetrics
from switchyard.telemetry.pdca_job_metrics import PdcaJobMetrics
from switchyard.telemetry.pdca_metrics import PdcaMetrics
from switchyard.telemetry.plain import LatencyMax, PlainCounter, PlainHistogram
from switchyard.telemetry.process_metrics import ProcessMetrics
from switchyard.telemetry.reconcile_metrics import ReconcileMetrics
from switchyard.telemetry.routing_metrics import RoutingMetrics
from switchyard.telemetry.trace_metrics import TraceMetrics

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
        self.group_size = Histogram(
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
