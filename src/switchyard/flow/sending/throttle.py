"""How fast a venue may be sent to: halved when it says 'too many', and slowly back by itself."""

from datetime import datetime, timedelta

# A venue that says 'too many' without saying for how long is left alone for a moment.
REST = timedelta(seconds=1)
# Sends under way gained back per success: some seconds of smooth sending from one to a full set of slots.
STEP = 0.25


class Throttle:
    """One venue's share of a worker's slots."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._allowed = float(slots)
        self._closed_until: datetime | None = None

    def free(self, under_way: int, now: datetime) -> int:
        """How many more sends may begin."""
        if self._closed_until is not None and now < self._closed_until:
            return 0
        return max(int(self._allowed) - under_way, 0)

    def slow_down(self, now: datetime, retry_after: timedelta | None) -> None:
        """The venue said 'too many'."""
        self._allowed = max(self._allowed / 2, 1.0)
        until = now + (retry_after or REST)
        self._closed_until = until if self._closed_until is None else max(self._closed_until, until)

    def speed_up(self) -> None:
        """The venue took one."""
        self._allowed = min(self._allowed + STEP, float(self._slots))
