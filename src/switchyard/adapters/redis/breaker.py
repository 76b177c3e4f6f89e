"""Circuit breaker: stops requests to a server that fails, and probes it again after a pause."""

from switchyard.ports.clock import Clock

# A single lost connection or slow reply must not open the breaker.
FAILURES_MAX = 5
# The minimum is about the time of a server restart. The maximum bounds how often a request pays for a time-out during a
# long outage.
REST_SECONDS_MIN = 0.25
REST_SECONDS_MAX = 15.0


class Breaker:
    """Closed: every request passes. Open: no request passes until the rest period ends, then one probe passes.

    A failed probe doubles the rest period up to its maximum; any success closes the breaker.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        failures_max: int = FAILURES_MAX,
        rest_seconds_min: float = REST_SECONDS_MIN,
        rest_seconds_max: float = REST_SECONDS_MAX,
    ) -> None:
        assert failures_max > 0 and 0 < rest_seconds_min <= rest_seconds_max
        self._clock = clock
        self._failures_max = failures_max
        self._rest_seconds_min = rest_seconds_min
        self._rest_seconds_max = rest_seconds_max
        self._failures = 0
        self._rest_seconds = 0.0
        self._rests_until = 0.0
        self._is_probing = False

    @property
    def is_open(self) -> bool:
        """Whether requests are being held back."""
        return self._rest_seconds > 0

    def allows(self) -> bool:
        """Return whether to send a request now; once per rest period while the breaker is open."""
        if not self.is_open:
            return True
        now = self._clock.monotonic()
        if now < self._rests_until:
            return False
        # Start the next rest period now, so that a probe whose result is never recorded delays the next probe by one
        # period instead of blocking all of them.
        self._is_probing = True
        self._rests_until = now + self._rest_seconds
        return True

    def failed(self) -> bool:
        """Record a failed request; true when it opened the breaker."""
        self._failures += 1
        if self.is_open:
            # A request sent before the breaker opened may fail later; only the probe extends the rest period.
            if self._is_probing:
                self._rest(min(self._rest_seconds * 2, self._rest_seconds_max))
            return False
        if self._failures < self._failures_max:
            return False
        self._rest(self._rest_seconds_min)
        return True

    def succeeded(self) -> bool:
        """Record a successful request; true when it closed the breaker."""
        was_open = self.is_open
        self._failures = 0
        self._rest_seconds = 0.0
        self._is_probing = False
        return was_open

    def _rest(self, seconds: float) -> None:
        self._is_probing = False
        self._rest_seconds = seconds
        self._rests_until = self._clock.monotonic() + seconds
