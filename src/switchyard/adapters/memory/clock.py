"""Time and randomness that a test owns."""

import random
from datetime import UTC, datetime, timedelta

# Any fixed moment will do; a recent one reads well in failures.
START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


class ManualClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, start: datetime = START) -> None:
        self._now = start
        self._elapsed = timedelta()

    def now(self) -> datetime:
        """The time in UTC."""
        return self._now

    def monotonic(self) -> float:
        """Seconds since this clock was made."""
        return self._elapsed.total_seconds()

    def advance(self, by: timedelta) -> None:
        """Let time pass."""
        assert by >= timedelta(), "time does not go back"
        self._now += by
        self._elapsed += by


class SeededRandomness:
    """The same draws for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def bits(self, count: int) -> int:
        """An integer of that many bits."""
        return self._random.getrandbits(count)

    def jitter(self) -> float:
        """A number between -1 and 1."""
        return self._random.uniform(-1, 1)
