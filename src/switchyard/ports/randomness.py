"""The randomness port, for ids and jitter."""

from typing import Protocol

from switchyard.domain.ids import ULID_RANDOM_BITS, ulid
from switchyard.ports.clock import Clock


class Randomness(Protocol):
    """A source of random numbers."""

    def bits(self, count: int) -> int:
        """Return an integer of `count` unpredictable bits."""
        ...

    def jitter(self) -> float:
        """Return a number between -1 and 1."""
        ...


def fresh_ulid(clock: Clock, randomness: Randomness) -> str:
    """Return a new ULID with the current time."""
    return ulid(int(clock.now().timestamp() * 1000), randomness.bits(ULID_RANDOM_BITS))
