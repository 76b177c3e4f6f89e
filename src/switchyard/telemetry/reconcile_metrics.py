"""The metrics of reconciliation."""

from prometheus_client import CollectorRegistry, Gauge


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
