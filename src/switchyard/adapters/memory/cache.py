"""The idempotency cache of a single process, in a dictionary."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import islice

from msgspec.structs import replace

from switchyard.adapters.cache_tally import CacheTally
from switchyard.domain.ids import AccountId
from switchyard.ports.cache import CacheEntry, CacheStats, CacheStatus, CacheWatch
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
        if self._remove_expired(entry_key):
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
