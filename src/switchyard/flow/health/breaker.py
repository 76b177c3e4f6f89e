"""The circuit breaker of a venue: whether orders may be sent to it, judged by its answers. In memory.

Counts transport faults, 5xx and 429, never rejections. Reads close it again: good probes, and reports that
can be read. Written by the sends, the venue's watch and its gate; read by the dispatcher and the router.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import structlog

from switchyard.domain.ids import VenueName
from switchyard.domain.market.health import BreakerState
from switchyard.domain.orders.reasons import bounded_detail
from switchyard.ports.clock import Clock
from switchyard.ports.venue import Accepted, Ambiguous, SendOutcome, Unsent, VenueRejected
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

STATE_NUMBERS: Final[dict[BreakerState, int]] = {"closed": 0, "half_open": 1, "open": 2}

# Good probes in a row after the pause, one a second: a single answer may come from a venue that is still starting.
PROBES_GOOD = 2
# A venue whose orders keep failing although it answers probes is tried less and less often, up to this pause.
PAUSE_MAX = timedelta(minutes=1)
# A read of reports that fails is repeated within a second; after this time without one, fills would not be heard.
UNHEARD_SECONDS = 5.0

_FAULTS: Final = frozenset(
    {"BROKER_DOWN", "VENUE_DOWN", "RATE_LIMITED", "NETWORK_TIMEOUT", "NETWORK_DISCONNECTED", "BROKER_5XX"}
)


def _nothing() -> None:
    pass


class VenueBreaker:
    """Opens after `faults_max` faults in a row; with 0 it never opens.

    While it is open nothing is sent. After the pause it is half open: it closes with `PROBES_GOOD` good probes in a row
    and reports that can be read. Then one order at a time is sent until the venue answers one; a fault before that
    opens it again, for twice as long.
    """

    def __init__(self, venue: VenueName, *, faults_max: int, pause: timedelta, clock: Clock, metrics: Metrics) -> None:
        self.venue = venue
        self._faults_max = faults_max
        self._pause_min = self._pause = pause.total_seconds()
        self._clock = clock
        self._gauge = metrics.routing.breaker_state.labels(venue)
        self._opened = metrics.routing.breaker_opened.labels(venue)
        self._send_faults = 0
        self._probe_faults = 0
        self._good_probes = 0
        self._open_until: float | None = None
        """None while it is closed; on the monotonic clock."""
        self._unheard_since: float | None = None
        self._since = clock.now()
        self.reason: str | None = None
        """Why it is not closed; for people."""
        self.is_unheard = False
        """Whether it opened because reports cannot be read: the venue may well take a cancel."""
        self.is_trial = False
        """Whether it has just closed, and the venue has not answered an order since."""
        self.on_change: Callable[[], None] = _nothing
        """Called after it opens or closes."""
        self._gauge.set(0)

    @property
    def is_closed(self) -> bool:
        """Whether orders may be sent."""
        return self._open_until is None

    @property
    def state(self) -> BreakerState:
        """Its state; half open once the pause is over and the next probes decide."""
        if self._open_until is None:
            return "closed"
        return "half_open" if self._clock.monotonic() >= self._open_until else "open"

    @property
    def faults(self) -> int:
        """The faults in a row so far."""
        return self._send_faults + self._probe_faults

    def note_send(self, outcome: SendOutcome) -> None:
        """A request to the venue has ended; what never left this process, and unclear answers, say nothing."""
        match outcome:
            case Accepted() | VenueRejected():
                self._send_faults = 0
                if self.is_closed:
                    self.is_trial, self._pause = False, self._pause_min
            case Unsent(code, detail) | Ambiguous(code, detail) if code in _FAULTS:
                self._send_faults += 1
                self._judge(code if detail is None else f"{code}: {detail}")

    def note_probe(self, failure: str | None) -> None:
        """A probe has ended; `failure` says why it was not answered in time."""
        if failure is not None:
            self._probe_faults += 1
            self._good_probes = 0
            if self.is_closed:
                self._judge(failure)
            elif self.is_unheard:
                self.is_unheard = False  # it does not answer at all
                self._open(failure)
                self.on_change()
            elif self.state == "half_open":
                self._open(failure)
            return
        self._probe_faults = 0
        if self.is_closed:
            self._judge_reports()
        elif self.state == "half_open" and self._unheard_since is None:
            self._good_probes += 1
            if self._good_probes >= PROBES_GOOD:
                self._close()
        self._gauge.set(STATE_NUMBERS[self.state])

    def note_hanging(self, seconds: float) -> None:
        """A probe has had no answer for this time: what is sent now would come into doubt."""
        if self.is_closed and self._faults_max:
            self._open(f"no answer to a probe for {seconds:g} s")

    def note_reports(self, failure: str | None) -> None:
        """A read of reports has ended; `failure` says why it failed."""
        if failure is None:
            self._unheard_since = None
        elif self._unheard_since is None:
            self._unheard_since = self._clock.monotonic()
        if failure is not None and self.is_closed:
            self._judge_reports(failure)

    def _judge_reports(self, failure: str = "no read of them succeeds") -> None:
        if self._unheard_since is None or not self._faults_max:
            return
        if self._clock.monotonic() - self._unheard_since >= UNHEARD_SECONDS:
            self.is_unheard = True
            self._open(f"its reports cannot be read: {failure}")

    def _judge(self, why: str) -> None:
        if not self.is_closed or not self._faults_max:
            return
        if self.is_trial:
            self._pause = min(2 * self._pause, PAUSE_MAX.total_seconds())
            self._open(f"the first order after a pause failed: {why}")
        elif self.faults >= self._faults_max:
            self._open(f"{self.faults} faults in a row, the last: {why}")

    def _open(self, reason: str) -> None:
        was_closed = self.is_closed
        self._open_until = self._clock.monotonic() + self._pause
        self._good_probes = 0
        self.is_trial = False
        self.reason = bounded_detail(reason)
        self._gauge.set(STATE_NUMBERS["open"])
        if was_closed:
            self._since = self._clock.now()
            self._opened.inc()
            log.error("venue_breaker_opened", venue=self.venue, reason=reason, pause_seconds=self._pause)
            self.on_change()

    def _close(self) -> None:
        self._open_until = self.reason = None
        self.is_unheard = False
        self._send_faults = self._probe_faults = 0
        self.is_trial = True
        self._since = self._clock.now()
        log.warning("venue_breaker_closed", venue=self.venue)
        self.on_change()
