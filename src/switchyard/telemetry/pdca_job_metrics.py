"""The metrics of rechecks and of the Airflow adapter."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class PdcaJobMetrics:
    """What became of rechecks, and how the runner answers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.items = Counter(
            "pdca_rechecks_total",
            "Rechecks, by outcome; retried: a database was away, lost: another worker has claimed it",
            ["outcome"],
            registry=registry,
        )
        for outcome in ("succeeded", "failed", "retried", "lost"):
            self.items.labels(outcome)  # an alert needs to see the first increase from 0
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
