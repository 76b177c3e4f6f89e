"""When to leave a server alone that does not answer, and when to try it again."""

from switchyard.ports.clock import Clock

# One lost connection, or one slow moment, is no reason to stop asking.
FAILURES_MAX = 5
# A restart takes a server about this long; one that is gone for long costs a request now and then a time-out.
REST_SECONDS_MIN = 0.25
REST_SECONDS_MAX = 15.0


class Breaker:
    """Closed: ask. Open: rest, then let one through; its failure doubles the rest, a success closes it."""

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
        """Whether the server is being left alone."""
        return self._rest_seconds > 0

    def allows(self) -> bool:
        """Whether to ask now; after a rest, this is true once."""
        if not self.is_open:
            return True
        now = self._clock.monotonic()
        if now < self._rests_until:
            return False
        # Nobody else for another rest: a probe of which nothing is ever heard must not keep it open for good.
        self._is_probing = True
        self._rests_until = now + self._rest_seconds
        return True

    def failed(self) -> bool:
        """Note that the server did not answer; true when that opened it."""
        self._failures += 1
        if self.is_open:
            # Late failures of what was asked before it opened say nothing new.
            if self._is_probing:
                self._rest(min(self._rest_seconds * 2, self._rest_seconds_max))
            return False
        if self._failures < self._failures_max:
            return False
        self._rest(self._rest_seconds_min)
        return True

    def succeeded(self) -> bool:
        """Note an answer; true when that closed it."""
        was_open = self.is_open
        self._failures = 0
        self._rest_seconds = 0.0
        self._is_probing = False
        return was_open

    def _rest(self, seconds: float) -> None:
        self._is_probing = False
        self._rest_seconds = seconds
        self._rests_until = self._clock.monotonic() + seconds
