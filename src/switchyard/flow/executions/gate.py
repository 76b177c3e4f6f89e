"""The gate of a venue: whether this process sends orders to it, why not, and whether its reports are heard.

Set by synchronisation and by the recorder; read by `/health`. It calls the dispatcher through two callbacks.
"""

from collections.abc import Callable, Collection
from typing import Literal

import msgspec
import structlog

from switchyard.domain.ids import OrderId, VenueName
from switchyard.flow.health.breaker import VenueBreaker
from switchyard.ports.clock import Clock
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# A start takes a moment: a venue that is not synchronised yet is a problem only after this time.
SYNC_SECONDS = 5.0


ProblemCode = Literal[
    "BREAKER_OPEN", "NOT_SYNCHRONISED", "CLOSED", "REPORTS_UNREADABLE", "REPORTS_WAIT", "ENDED_ORDERS_OPEN"
]


class VenueProblem(msgspec.Struct, frozen=True):
    """Why a venue is closed, or open but not heard."""

    venue: VenueName
    is_open: bool
    code: ProblemCode
    reason: str
    """For operators: it may name addresses and quote the venue's client library."""


def _nothing() -> None:
    pass


class VenueGate:
    """One venue's gate; closed until `open`."""

    def __init__(
        self,
        venue: VenueName,
        *,
        clock: Clock,
        metrics: Metrics,
        on_open: Callable[[], None] = _nothing,
        on_close: Callable[[], None] = _nothing,
        breaker: VenueBreaker | None = None,
    ) -> None:
        self._venue = venue
        self._clock = clock
        self._metrics = metrics
        self._on_open = on_open
        self._on_close = on_close
        self._breaker = breaker
        self._made_at = clock.monotonic()
        self._closed: str | None = None
        self._unheard: str | None = None
        self._ended: frozenset[OrderId] = frozenset()
        self._waiting_count = 0
        self.is_open = False
        self.is_locked = False
        metrics.venue_state.labels(venue).set(0)
        for counter in (metrics.ended_open, metrics.contradictions, metrics.report_reads_failed):
            counter.labels(venue)  # an alert needs to see the first increase from 0

    @property
    def problem(self) -> VenueProblem | None:
        """What an operator should know; none while all is well."""
        if self.is_open:
            held = None if self._breaker is None else self._breaker.reason
            if held is not None:
                return VenueProblem(self._venue, False, "BREAKER_OPEN", f"its circuit breaker is open: {held}")
            problems: list[tuple[ProblemCode, str | None]] = [
                ("REPORTS_UNREADABLE", self._unheard),
                ("REPORTS_WAIT", self._waiting),
                ("ENDED_ORDERS_OPEN", self._open_there),
            ]
            found = [(code, reason) for code, reason in problems if reason is not None]
            if not found:
                return None
            return VenueProblem(self._venue, True, found[0][0], "; ".join(reason for _, reason in found))
        waits = self._clock.monotonic() - self._made_at
        reason = self._closed or (f"not synchronised after {waits:.0f} s" if waits >= SYNC_SECONDS else None)
        code: ProblemCode = "CLOSED" if self.is_locked else "NOT_SYNCHRONISED"
        return None if reason is None else VenueProblem(self._venue, False, code, reason)

    def open(self) -> None:
        """Send to the venue from now on, unless it is locked."""
        if self.is_locked or self.is_open:
            return
        self.is_open = True
        self._closed = None
        self._metrics.venue_state.labels(self._venue).set(1)
        self._on_open()

    def note_not_synced(self, error: str) -> None:
        """A synchronisation failed; the venue opens after one that succeeds. Only the first failure is logged."""
        if self.is_locked:
            return
        if self._closed is None:
            log.warning("venue_not_synced", venue=self._venue, error=error)
        self._closed = f"not synchronised: {error}"

    def lock(self, reason: str) -> None:
        """Send nothing to the venue for as long as this process runs."""
        if self.is_locked:
            return
        self.is_locked, self._closed, self.is_open = True, reason, False
        self._metrics.venue_state.labels(self._venue).set(0)
        log.critical("venue_closed", venue=self._venue, reason=reason)
        self._on_close()

    def note_unheard(self, error: str) -> None:
        """A read of reports failed."""
        self._metrics.report_reads_failed.labels(self._venue).inc()
        if self._unheard is None:
            log.error("venue_unheard", venue=self._venue, error=error)
        if self._breaker is not None:
            self._breaker.note_reports(error)
        self._unheard = f"its reports cannot be read: {error}"

    def note_waiting(self, count: int) -> None:
        """So many reports wait until the venue can be asked about their orders, after a restore."""
        self._waiting_count = count

    @property
    def _waiting(self) -> str | None:
        if not self._waiting_count:
            return None
        return f"{self._waiting_count} report(s) that end orders of before the restore wait for a lookup"

    def note_ended(self, order_ids: Collection[OrderId]) -> None:
        """All orders that have ended here and that the venue shows open; each is counted and logged once."""
        for order_id in sorted(set(order_ids) - self._ended):
            self._metrics.ended_open.labels(self._venue).inc()
            log.error("ended_order_open_at_venue", venue=self._venue, order_id=order_id)
        self._ended = frozenset(order_ids)

    @property
    def _open_there(self) -> str | None:
        if not self._ended:
            return None
        return (
            f"it shows {len(self._ended)} order(s) open that have ended here, such as {min(self._ended)}: "
            "cancel them at the venue"
        )

    def note_heard(self) -> None:
        """A read of reports succeeded."""
        if self._unheard is not None:
            log.info("venue_heard_again", venue=self._venue)
        self._unheard = None
        if self._breaker is not None:
            self._breaker.note_reports(None)
