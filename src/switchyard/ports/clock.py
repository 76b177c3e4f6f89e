"""The clock port; tests use a clock that they move themselves."""

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for dates, monotonic time for durations."""

    def now(self) -> datetime:
        """Return the current time in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never decrease, for measuring durations."""
        ...
