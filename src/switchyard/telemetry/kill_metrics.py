"""The metrics of the kill switch."""

from prometheus_client import CollectorRegistry, Counter, Gauge


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
