"""The simulator's own clock, which can differ from that of its clients."""

from datetime import datetime, timedelta

from switchyard.ports.clock import Clock


class OffsetClock:
    """Implements `Clock`: another clock's wall time plus a constant offset."""

    def __init__(self, clock: Clock, offset: timedelta) -> None:
        self._clock = clock
        self._offset = offset

    @property
    def jumped_at(self) -> None:
        """No key is judged by this clock."""

    @property
    def stepped_ahead(self) -> timedelta:
        """No order waits by this clock."""
        return timedelta()

    def now(self) -> datetime:
        """The time in UTC, with the offset."""
        return self._clock.now() + self._offset

    def monotonic(self) -> float:
        """Seconds that never decrease."""
        return self._clock.monotonic()
