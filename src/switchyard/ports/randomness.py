"""Randomness for ids and jitter."""

from typing import Protocol

from switchyard.domain.ids import ULID_RANDOM_BITS, ulid
from switchyard.ports.clock import Clock


class Randomness(Protocol):
    """Where ids and jitter come from."""

    def bits(self, count: int) -> int:
        """An integer of that many unpredictable bits."""
        ...

    def jitter(self) -> float:
        """A number between -1 and 1."""
        ...


def fresh_ulid(clock: Clock, randomness: Randomness) -> str:
    """A ULID of this moment."""
    return ulid(int(clock.now().timestamp() * 1000), randomness.bits(ULID_RANDOM_BITS))
