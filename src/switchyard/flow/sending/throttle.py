"""Adaptive limit of sends under way to one venue: halved at each 429, restored step by step by successes."""

from datetime import datetime, timedelta

# The pause after a 429 without Retry-After.
REST = timedelta(seconds=1)
# Slots regained per accepted send: a few seconds of steady sending lead from one slot back to all of them.
STEP = 0.25


class Throttle:
    """One venue's limit within a worker's slots."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._allowed = float(slots)
        self._closed_until: datetime | None = None

    def free(self, under_way: int, now: datetime) -> int:
        """How many more sends may begin now."""
        if self._closed_until is not None and now < self._closed_until:
            return 0
        return max(int(self._allowed) - under_way, 0)

    def slow_down(self, now: datetime, retry_after: timedelta | None) -> None:
        """The venue answered 429: halve the limit, and send nothing until the pause is over."""
        self._allowed = max(self._allowed / 2, 1.0)
        until = now + (retry_after or REST)
        self._closed_until = until if self._closed_until is None else max(self._closed_until, until)

    def speed_up(self) -> None:
        """The venue accepted a send: regain a part of a slot."""
        self._allowed = min(self._allowed + STEP, float(self._slots))
