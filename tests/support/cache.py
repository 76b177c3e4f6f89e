"""Cache entries with defaults for every field, and caches of several gateways over one store."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from switchyard.adapters.memory.cache import MemoryCache
from switchyard.adapters.redis.cache import RedisCache
from switchyard.adapters.redis.host import RedisHost
from switchyard.domain.ids import AccountId, OrderId
from switchyard.ports.cache import Cache, CacheEntry, CacheError, CacheStatus
from tests.support.memory.clock import START, ManualClock
from tests.support.redis import RedisServer

KEY = b"a key for tests, and no others!!"
# On a slow machine the default time-outs would turn hits into misses.
LONG_TIMEOUTS: dict[str, Any] = {"connect_seconds": 60.0, "read_seconds": 60.0, "write_seconds": 60.0}


def a_cache_entry(
    key: str,
    *,
    account: str = "acc-1",
    operation: str = "do/order",
    generation: int = 0,
    order: str = "ord_1",
    status: CacheStatus = "completed",
    request_id: str | None = None,
    http_status: int | None = None,
    response: str | None = None,
    error: str | None = None,
    created_at: datetime = START,
    ttl: timedelta = timedelta(hours=1),
) -> CacheEntry:
    return CacheEntry(
        account_id=AccountId(account),
        operation=operation,
        idempotency_key=key,
        generation=generation,
        request_digest=f"sha256:{key}",
        order_id=OrderId(order),
        request_id=request_id,
        status=status,
        http_status=http_status,
        response=response,
        error=error,
        created_at=created_at,
        expires_at=created_at + ttl,
    )


def as_put(entry: CacheEntry | None) -> CacheEntry | None:
    """Return a found entry without what its lookups have added."""
    return None if entry is None else replace(entry, access_count=0, last_accessed=None)


class CountingWatch:
    """ports.cache.CacheWatch with plain counts."""

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        self.errors: Counter[CacheError] = Counter()
        self.size = 0
        self.expirations = 0

    def looked_up(self, *, hit: bool) -> None:
        self.hits += hit
        self.misses += not hit

    def failed(self, kind: CacheError) -> None:
        self.errors[kind] += 1

    def expired(self, entries: int) -> None:
        self.expirations += entries

    def holds(self, entries: int) -> None:
        self.size = entries


class GatewayCaches:
    """The caches of several gateways over one store: the Redis server, or without one a shared MemoryCache."""

    def __init__(self, server: RedisServer | None, **host: Any) -> None:
        self.clock = ManualClock()
        self.watch = CountingWatch()
        self.server = server
        self._host: dict[str, Any] = {"clock": self.clock, **LONG_TIMEOUTS, **host}
        self._memory = MemoryCache(clock=self.clock, watch=self.watch)
        self._opened: list[RedisCache] = []
        self.cache = self.add_gateway()

    def add_gateway(self, *, key: bytes = KEY, queue_max: int = 10_000) -> Cache:
        """Return the cache of another gateway."""
        if self.server is None:
            return self._memory
        host = RedisHost(self.server.url, **self._host)
        cache = RedisCache(host, key=key, clock=self.clock, queue_max=queue_max, watch=self.watch)
        self._opened.append(cache)
        return cache

    async def put(self, *entries: CacheEntry, cache: Cache | None = None) -> None:
        """Put the entries and write every queue."""
        for entry in entries:
            (cache or self.cache).put(entry)
        await self.write_queues()

    async def write_queues(self) -> None:
        for cache in self._opened:
            while await cache.write_once():
                pass

    async def get(self, key: str, *, account: str = "acc-1", operation: str = "do/order") -> CacheEntry | None:
        """Look an entry up; returned as it was put."""
        return as_put(await self.cache.get(AccountId(account), operation, key))

    async def forget(self, key: str, *, account: str = "acc-1", operation: str = "do/order") -> None:
        await self.cache.forget(AccountId(account), operation, key)

    async def close(self) -> None:
        for cache in self._opened:
            await cache.close()
