"""The metrics of the PDCA API (seed 003, section 10)."""

from prometheus_client import CollectorRegistry, Counter, Histogram


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
