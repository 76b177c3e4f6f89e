"""The machine's own time and randomness."""

import os
import random
import time
from datetime import UTC, datetime

# One system call fills this many draws: alone, each would cost more than everything else an id needs.
_DRAWS_PER_FILL = 256
# Draws by their width. Filled and emptied with single list operations, so that no two threads get the same draw.
_pools: dict[int, list[int]] = {}
# A forked child must not hand out the ids that its parent is about to hand out.
os.register_at_fork(after_in_child=_pools.clear)


class SystemClock:
    """The machine's clock, in UTC."""

    def now(self) -> datetime:
        """The time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


class SystemRandomness:
    """The kernel's randomness for ids, drawn in bulk; an ordinary generator for jitter."""

    def bits(self, count: int) -> int:
        """An integer of that many unpredictable bits."""
        try:
            return _pools[count].pop()
        except (KeyError, IndexError):
            return _filled(count).pop()

    def jitter(self) -> float:
        """A number between -1 and 1."""
        return random.random() * 2 - 1


def _filled(count: int) -> list[int]:
    width = (count + 7) // 8
    surplus = width * 8 - count
    data = os.urandom(width * _DRAWS_PER_FILL)
    draws = [int.from_bytes(data[at : at + width], "big") >> surplus for at in range(width, len(data), width)]
    _pools.setdefault(count, []).extend(draws)
    return [int.from_bytes(data[:width], "big") >> surplus]
