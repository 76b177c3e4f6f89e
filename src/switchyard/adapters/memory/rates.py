"""The rate limit of a single process."""

from bisect import bisect_right
from collections import OrderedDict, deque
from datetime import timedelta

from switchyard.ports.cache import Counted
from switchyard.ports.clock import Clock

# About 20 MB: a client that uses a limit of 60 fully takes 2 KB.
CLIENTS_MAX = 10_000


class MemoryRate:
    """ports.rates.SharedRate over the last requests of each client.

    Above `clients_max` clients, the one whose last accepted request is the oldest is removed; its count starts at zero.
    """

    def __init__(self, limit: int, window: timedelta, *, clock: Clock, clients_max: int = CLIENTS_MAX) -> None:
        assert limit > 0 and window > timedelta() and clients_max > 0, "limit, window and clients_max must be positive"
        self._limit = limit
        self._window_seconds = window.total_seconds()
        self._clock = clock
        self._clients_max = clients_max
        self._taken: OrderedDict[str, deque[float]] = OrderedDict()

    async def take(self, client: str) -> timedelta | None:
        """Count a request and return None, or return how long to wait."""
        return (await self.count(client)).wait

    async def count(self, client: str) -> Counted:
        """Count a request, or reject it."""
        now = self._clock.monotonic()
        taken = self._taken.get(client)
        if taken is None:
            taken = self._taken[client] = deque(maxlen=self._limit)
            if len(self._taken) > self._clients_max:
                self._taken.popitem(last=False)
        free_at = taken[0] + self._window_seconds if len(taken) == self._limit else now
        if free_at > now:
            wait = timedelta(seconds=free_at - now)
            return Counted(wait, 0, wait)
        taken.append(now)
        self._taken.move_to_end(client)
        first = bisect_right(taken, now - self._window_seconds)
        oldest = timedelta(seconds=taken[first] + self._window_seconds - now)
        return Counted(None, self._limit - (len(taken) - first), oldest)
