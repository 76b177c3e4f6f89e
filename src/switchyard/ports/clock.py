"""Time and randomness; tests move the clock themselves."""

import time
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Protocol

from switchyard.domain.ids import ULID_RANDOM_BITS, ulid

# Seconds on a clock that never goes back and, where the system has one, also counts while it is suspended. A partial of
# the system's own function, because an order reads this clock a dozen times.
boot_seconds: Final = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Clock(Protocol):
    """Wall time for dates, monotonic time for durations."""

    @property
    def jumped_at(self) -> datetime | None:
        """The time right after it last went forward by more than was measured, from which the ages of keys count.

        None if there was no such jump, and for clocks that no key is judged by.
        """

    @property
    def stepped_ahead(self) -> timedelta:
        """How much of that jump has certainly not passed: the wall clock was stepped while this machine ran on."""

    def now(self) -> datetime:
        """Return the current time in UTC."""

    def monotonic(self) -> float:
        """Return seconds that never decrease, for measuring durations."""


class Randomness(Protocol):
    """A source of random numbers."""

    def bits(self, count: int) -> int:
        """Return an integer of `count` unpredictable bits."""

    def jitter(self) -> float:
        """Return a number between -1 and 1."""


def fresh_ulid(clock: Clock, randomness: Randomness) -> str:
    """Return a new ULID with the current time."""
    return ulid(int(clock.now().timestamp() * 1000), randomness.bits(ULID_RANDOM_BITS))
