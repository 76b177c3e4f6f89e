"""The metrics of rechecks and of the Airflow adapter."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric


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
