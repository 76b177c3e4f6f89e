"""The metrics of the export of traces."""

from prometheus_client import CollectorRegistry, Counter


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
