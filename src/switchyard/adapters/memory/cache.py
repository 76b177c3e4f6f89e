"""Idempotency cache, token buckets and rates in the memory of one process: the defaults without Redis."""

import asyncio
from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from itertools import islice

from msgspec.structs import replace

from switchyard.adapters.cache_tally import CacheTally
from switchyard.domain.ids import AccountId
from switchyard.ports.cache import CacheEntry, CacheStats, CacheStatus, CacheWatch, Counted
from switchyard.ports.clock import Clock

# About 100 MB: an entry with a typical response takes 1 KB.
ENTRIES_MAX = 100_000
CLEANUP_EVERY = timedelta(minutes=5)
# A step takes some tenths of a millisecond; between two steps the event loop serves requests.
STEP = 1_000


class MemoryCache:
    """ports.cache.Cache in a dictionary; when it is full, the least recently used entry is removed."""

    def __init__(
        self,
        *,
        clock: Clock,
        entries_max: int = ENTRIES_MAX,
        cleanup_every: timedelta = CLEANUP_EVERY,
        watch: CacheWatch | None = None,
    ) -> None:
        assert entries_max > 0, "entries_max must be positive"
        self._clock = clock
        self._entries_max = entries_max
        self._cleanup_every = cleanup_every
        self._entries: OrderedDict[tuple[AccountId, str, str], CacheEntry] = OrderedDict()
        self._tally = CacheTally(watch)

    async def get(self, account: AccountId, operation: str, key: str) -> CacheEntry | None:
        """Return the entry, or None if there is none or it has expired; does not wait."""
        entry_key = (account, operation, key)
        entry = self._entries.get(entry_key)
        if entry is not None and self._remove_expired(entry_key):
            entry = None
        if entry is not None:
            entry = replace(entry, last_accessed=self._clock.now(), access_count=entry.access_count + 1)
            self._entries[entry_key] = entry
            self._entries.move_to_end(entry_key)
        self._tally.looked_up(hit=entry is not None)
        return entry

    def put(self, entry: CacheEntry) -> None:
        """Store the entry unless a newer one is there or the response is too large."""
        entry_key = _key(entry)
        present = self._entries.get(entry_key)
        if not entry.is_cacheable or (present is not None and present.precedence > entry.precedence):
            return
        self._entries[entry_key] = entry
        self._entries.move_to_end(entry_key)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
        self._tally.holds(len(self._entries))

    async def forget(self, account: AccountId, operation: str, key: str) -> None:
        """Remove the entry."""
        self._entries.pop((account, operation, key), None)
        self._tally.holds(len(self._entries))

    async def stats(self) -> CacheStats:
        """Return size and hit rate at the time of the call."""
        now = self._clock.now()
        hits, lookups, errors = self._tally.hits, self._tally.lookups, self._tally.errors
        statuses: Counter[CacheStatus] = Counter()
        entries = expired = 0
        oldest = None
        async for entry in self._in_steps():
            entries += 1
            expired += entry.expires_at <= now
            statuses[entry.status] += 1
            oldest = entry.created_at if oldest is None else min(oldest, entry.created_at)
        return CacheStats(
            is_reachable=True,
            entries=entries,
            active=entries - expired,
            expired=expired,
            by_status=dict(statuses),
            oldest_age_seconds=None if oldest is None else (now - oldest).total_seconds(),
            hits=hits,
            lookups=lookups,
            errors=errors,
        )

    async def clean_once(self) -> int:
        """Remove the expired entries and return how many there were."""
        removed = 0
        async for entry in self._in_steps():
            removed += self._remove_expired(_key(entry))
        self._tally.holds(len(self._entries))
        if removed:
            self._tally.expired(removed)
        return removed

    async def run(self) -> None:
        """Remove expired entries every `cleanup_every`, until cancelled."""
        while True:
            await asyncio.sleep(self._cleanup_every.total_seconds())
            await self.clean_once()

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    async def _in_steps(self) -> AsyncIterator[CacheEntry]:
        """Yield every entry present at the call, and let the event loop run between steps."""
        entries = iter(list(self._entries.values()))
        while step := list(islice(entries, STEP)):
            for entry in step:
                yield entry
            await asyncio.sleep(0)

    def _remove_expired(self, entry_key: tuple[AccountId, str, str]) -> bool:
        """Remove the entry if there is one and its time is over; returns whether it was removed."""
        entry = self._entries.get(entry_key)
        is_expired = entry is not None and entry.expires_at <= self._clock.now()
        if is_expired:
            del self._entries[entry_key]
        return is_expired


def _key(entry: CacheEntry) -> tuple[AccountId, str, str]:
    return entry.account_id, entry.operation, entry.idempotency_key


# About 200 bytes each.
ACCOUNTS_MAX = 100_000
# Less than the clock resolves; sums of intervals are not exact.
_EPSILON_SECONDS = 1e-9


class MemoryBuckets:
    """ports.cache.TokenBuckets: for each account the time at which its bucket would be full again.

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


# About 20 MB: a client that uses a limit of 60 fully takes 2 KB.
CLIENTS_MAX = 10_000


class MemoryRate:
    """ports.cache.SharedRate over the last requests of each client.

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
