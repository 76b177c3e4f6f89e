"""The clock port; tests use a clock that they move themselves."""

from datetime import datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Wall time for dates, monotonic time for durations."""

    @property
    def jumped_at(self) -> datetime | None:
        """The time right after it last went forward by more than was measured, from which the ages of keys count.

        None if there was no such jump, and for clocks that no key is judged by.
        """
        ...

    @property
    def stepped_ahead(self) -> timedelta:
        """How much of that jump has certainly not passed: the wall clock was stepped while this machine ran on."""
        ...

    def now(self) -> datetime:
        """Return the current time in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never decrease, for measuring durations."""
        ...
