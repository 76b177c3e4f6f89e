"""The metrics of the relay to the message broker."""

from prometheus_client import CollectorRegistry, Counter, Gauge


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
