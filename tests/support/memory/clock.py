"""A clock that tests move, and randomness from a seed."""

import random
from datetime import UTC, datetime, timedelta

# Any fixed time will do; a recent one is easy to read in failure messages.
START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


class ManualClock:
    """ports.clock.Clock that changes only through `advance` and `step`."""

    def __init__(self, start: datetime = START) -> None:
        self._now = start
        self._elapsed = timedelta()
        self.jumped_at: datetime | None = None
        self.stepped_ahead = timedelta()

    def now(self) -> datetime:
        """Return the current time in UTC."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds by which the clock was advanced."""
        return self._elapsed.total_seconds()

    def advance(self, by: timedelta) -> None:
        """Move wall time and monotonic time forward."""
        assert by >= timedelta(), "a clock moves forward only"
        self._now += by
        self._elapsed += by

    def step(self, by: timedelta) -> None:
        """Set the wall clock forward or back; monotonic time is not affected."""
        self._now += by


class SeededRandomness:
    """ports.clock.Randomness with the same numbers for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def bits(self, count: int) -> int:
        """Return an integer of `count` bits."""
        return self._random.getrandbits(count)

    def jitter(self) -> float:
        """Return a number between -1 and 1."""
        return self._random.uniform(-1, 1)
