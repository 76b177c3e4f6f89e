"""The clock and the randomness of the operating system."""

import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

from switchyard.domain.ids import TAG_BITS, ULID_RANDOM_BITS, Installation, new_installation
from switchyard.ports.clock import boot_seconds

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Values per system call: one call per value would cost more than the rest of making an id.
_VALUES_PER_FILL = 256
# Unused values by bit width. `extend` and `pop` are atomic, so no two threads get the same value.
_pools: dict[int, list[int]] = {}
# A forked child must not return the values that its parent will return.
os.register_at_fork(after_in_child=_pools.clear)


class SystemClock:
    """The machine's wall clock and monotonic clock."""

    jumped_at: datetime | None = None
    stepped_ahead = timedelta()

    def now(self) -> datetime:
        """The time in UTC."""
        return datetime.now(UTC)

    monotonic = staticmethod(boot_seconds)
    """Otherwise an attempt, or a venue's deduplication time, would be younger than it is after a suspend."""


def boot_id() -> str | None:
    """The id that the kernel made up when it started: `boot_seconds` of two processes compare only if theirs are equal.

    None where the system has no such id.
    """
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return None


class SystemRandomness:
    """Randomness of the kernel for ids, read in bulk; a pseudo-random generator for jitter."""

    def bits(self, count: int) -> int:
        """An integer of that many unpredictable bits."""
        try:
            return _pools[count].pop()
        except (KeyError, IndexError):
            return _fill_pool(count)

    def jitter(self) -> float:
        """A number between -1 and 1."""
        return random.random() * 2 - 1


def _fill_pool(count: int) -> int:
    """Read new values from the kernel, keep all but one in the pool, and return that one."""
    width = (count + 7) // 8
    surplus = width * 8 - count
    data = os.urandom(width * _VALUES_PER_FILL)
    values = [int.from_bytes(data[at : at + width], "big") >> surplus for at in range(width, len(data), width)]
    _pools.setdefault(count, []).extend(values)
    return int.from_bytes(data[:width], "big") >> surplus


def random_installation() -> Installation:
    """A new installation with a random id and tag."""
    randomness = SystemRandomness()
    milliseconds = int(SystemClock().now().timestamp() * 1000)
    return new_installation(milliseconds, randomness.bits(ULID_RANDOM_BITS), randomness.bits(TAG_BITS))
