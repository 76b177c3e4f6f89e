"""The token buckets of a single process."""

from collections import OrderedDict
from datetime import timedelta
from decimal import Decimal

from switchyard.ports.clock import Clock

# About 200 bytes each.
ACCOUNTS_MAX = 100_000
# Less than the clock resolves; sums of intervals are not exact.
_EPSILON_SECONDS = 1e-9


class MemoryBuckets:
    """ports.buckets.TokenBuckets: for each account the time at which its bucket would be full again.

    Above `accounts_max` accounts, the one that was used longest ago is removed; its bucket is full again.
    """

    def __init__(self, per_second: Decimal, burst: int, *, clock: Clock, accounts_max: int = ACCOUNTS_MAX) -> None:
        assert per_second > 0 and burst > 0 and accounts_max > 0, "rate, burst and accounts_max must be positive"
        self._interval = float(1 / per_second)
        self._tolerance = (burst - 1) * self._interval
        self._clock = clock
        self._accounts_max = accounts_max
        self._full_at: OrderedDict[str, float] = OrderedDict()

    async def take(self, account: str) -> timedelta | None:
        """Take a token and return None, or return how long to wait for the next one."""
        now = self._clock.monotonic()
        full_at = max(self._full_at.get(account, now), now)
        seconds = full_at - now - self._tolerance
        if seconds > _EPSILON_SECONDS:
            return timedelta(seconds=seconds)
        self._full_at[account] = full_at + self._interval
        self._full_at.move_to_end(account)
        if len(self._full_at) > self._accounts_max:
            self._full_at.popitem(last=False)
        return None

    async def put_back(self, account: str) -> None:
        """Return a token that was not needed."""
        if account in self._full_at:
            self._full_at[account] -= self._interval

    async def wait(self, account: str) -> timedelta | None:
        """Return how long `take` would have to wait; takes nothing."""
        now = self._clock.monotonic()
        seconds = self._full_at.get(account, now) - now - self._tolerance
        return timedelta(seconds=seconds) if seconds > _EPSILON_SECONDS else None
