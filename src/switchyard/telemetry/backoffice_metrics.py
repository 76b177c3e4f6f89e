"""The metrics of the back office."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class BackOfficeMetrics:
    """How far the books are, and whether they have stopped."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seq = Gauge("backoffice_seq", "Number of the last event that the books have read", registry=registry)
        self.lag = Gauge("backoffice_lag_events", "Events that the books have not read yet", registry=registry)
        self.halted = Gauge(
            "backoffice_halted",
            "1 if a source of events has stopped, because its history is not that of the books",
            registry=registry,
        )
        self.halted_accounts = Gauge(
            "backoffice_halted_accounts",
            "Accounts whose events are not booked, because one is missing or cannot be booked",
            registry=registry,
        )
        self.entries = Counter("backoffice_entries_total", "Entries booked", registry=registry)
        self.repeats = Counter(
            "backoffice_repeats_total", "Events dropped because they were read before", registry=registry
        )
        self.rejected = Counter(
            "backoffice_rejected_messages",
            "Messages of the topic that were dropped, because this installation did not sign them",
            ["reason"],
            registry=registry,
        )
        for reason in ("unsigned", "signature"):
            self.rejected.labels(reason)
        self.notes = Counter(
            "backoffice_notes_total",
            "Notes on entries, such as a total that the fills do not explain",
            registry=registry,
        )
