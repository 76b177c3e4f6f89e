"""The metrics of the router: breakers, failovers and rate limits of venues."""

from prometheus_client import CollectorRegistry, Counter, Gauge


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
