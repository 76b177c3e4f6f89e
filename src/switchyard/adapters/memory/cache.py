"""The idempotency cache of a single process."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import islice

from switchyard.adapters.cache_tally import CacheTally
from switchyard.domain.ids import AccountId
from switchyard.ports.cache import CacheEntry, CacheStats, CacheStatus, CacheWatch
from switchyard.ports.clock import Clock

# About 1 KB each with a response of ordinary size.
ENTRIES_MAX = 100_000
CLEANUP_EVERY = timedelta(minutes=5)
# Some tenths of a millisecond; requests go on between two steps.
STEP = 1_000


class MemoryCache:
    """ports.cache.Cache in a dictionary; when full, the least recently used entry leaves."""

    def __init__(
        self,
        *,
        clock: Clock,
        entries_max: int = ENTRIES_MAX,
        cleanup_every: timedelta = CLEANUP_EVERY,
        watch: CacheWatch | None = None,
    ) -> None:
        assert entries_max > 0, "a cache needs room"
        self._clock = clock
        self._entries_max = entries_max
        self._cleanup_every = cleanup_every
        self._entries: OrderedDict[tuple[AccountId, str, str], CacheEntry] = OrderedDict()
        self._tally = CacheTally(watch)

    async def get(self, account: AccountId, operation: str, key: str) -> CacheEntry | None:
        """The entry, or none where there is none or it has expired; waits for nothing."""
        place = (account, operation, key)
        entry = self._entries.get(place)
        if entry is not None and entry.expires_at <= self._clock.now():
            self._drop(entry)
            entry = None
        if entry is not None:
            self._entries.move_to_end(place)
        self._tally.looked_up(hit=entry is not None)
        return entry

    def put(self, entry: CacheEntry) -> None:
        """Keep the entry, unless a newer one is there or the response is too large."""
        place = _place(entry)
        held = self._entries.get(place)
        if not entry.is_cacheable or (held is not None and held.precedence > entry.precedence):
            return
        self._entries[place] = entry
        self._entries.move_to_end(place)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
        self._tally.holds(len(self._entries))

    async def forget(self, account: AccountId, operation: str, key: str) -> None:
        """Drop an entry."""
        self._entries.pop((account, operation, key), None)
        self._tally.holds(len(self._entries))

    async def stats(self) -> CacheStats:
        """Exact as of the moment of the call."""
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
        """Remove what has expired; how many that were."""
        now = self._clock.now()
        removed = 0
        async for entry in self._in_steps():
            if entry.expires_at <= now:
                removed += self._drop(entry)
        self._tally.holds(len(self._entries))
        return removed

    async def run(self) -> None:
        """Clean up now and then, until cancelled."""
        while True:
            await asyncio.sleep(self._cleanup_every.total_seconds())
            await self.clean_once()

    async def close(self) -> None:
        """Nothing to let go of."""

    async def _in_steps(self) -> AsyncIterator[CacheEntry]:
        """Every entry of this moment, with room for requests in between."""
        entries = iter(list(self._entries.values()))
        while step := list(islice(entries, STEP)):
            for entry in step:
                yield entry
            await asyncio.sleep(0)

    def _drop(self, entry: CacheEntry) -> bool:
        """Remove this very entry: another may have taken its place meanwhile."""
        is_held = self._entries.get(_place(entry)) is entry
        if is_held:
            del self._entries[_place(entry)]
        return is_held


def _place(entry: CacheEntry) -> tuple[AccountId, str, str]:
    return entry.account_id, entry.operation, entry.idempotency_key
