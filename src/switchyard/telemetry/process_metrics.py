"""The metrics of a process itself: its version and role, its journal, its disks and its clock."""

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

from switchyard import __version__


class ProcessMetrics:
    """Part of `Metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        ProcessCollector(registry=registry)
        self.info = Gauge("switchyard_info", "1, with version and role", ["version", "role"], registry=registry)
        self.journal_up = Gauge(
            "journal_up", "0 if the last read of the journal's database failed, else 1", registry=registry
        )
        self.journal_up.set(1)
        self.revoked_tokens_up = Gauge(
            "revoked_tokens_up",
            "0 if the newest list of revoked tokens cannot be read, else 1; an older list is in use meanwhile",
            registry=registry,
        )
        self.revoked_tokens_up.set(1)
        self.journal_seq = Gauge("journal_seq", "Number of the journal's last event", registry=registry)
        self.audit_lag = Gauge(
            "audit_lag_events", "Events that the audit file of this process does not have yet", registry=registry
        )
        self.disk_free = Gauge(
            "disk_free_bytes", "Free space of the file system of a folder", ["folder"], registry=registry
        )
        self.disk_size = Gauge("disk_size_bytes", "Size of the file system of a folder", ["folder"], registry=registry)
        self.clock_skew = Gauge(
            "clock_skew_seconds", "This machine's wall clock minus the time in use", registry=registry
        )
        self.clock_offset = Gauge(
            "clock_offset_seconds",
            "This machine's wall clock minus that of the database or of a venue",
            ["against"],
            registry=registry,
        )

    def describe(self, role: str) -> None:
        """Set the version and the role."""
        self.info.labels(__version__, role).set(1)
