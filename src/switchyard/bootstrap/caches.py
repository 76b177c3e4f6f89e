"""What makes repeats cheap and rates shared: in memory, or on Redis where one is configured."""

import hashlib
import hmac
from contextlib import AsyncExitStack
from datetime import timedelta

from switchyard.adapters.memory.cache import MemoryCache
from switchyard.adapters.memory.rates import MemoryRate
from switchyard.adapters.redis.cache import RedisCache
from switchyard.adapters.redis.host import RedisHost
from switchyard.adapters.redis.rates import RedisRate
from switchyard.ports.cache import Cache
from switchyard.ports.clock import Clock
from switchyard.ports.rates import SharedRate
from switchyard.settings import Settings, jwt_secret
from switchyard.telemetry.metrics import Metrics

RATE_WINDOW = timedelta(minutes=1)


class Caches:
    """The cache and the rate of one process."""

    def __init__(self, cache: Cache | None, rate: SharedRate, ttl: timedelta) -> None:
        self.cache = cache
        """None where it is switched off."""
        self.rate = rate
        self.ttl = ttl


def open_caches(settings: Settings, life: str, clock: Clock, metrics: Metrics, stack: AsyncExitStack) -> Caches:
    """As configured; closed with the stack.

    What was cached before an older database was restored tells of orders that this database may not have: entries are
    sealed with the database's life, so that those of another one are misses.
    """
    block = settings.idempotency
    metrics.cache.tracks_hits = block.monitoring.track_cache_hit_rate
    rate: SharedRate = MemoryRate(settings.do_rate_per_minute, RATE_WINDOW, clock=clock)
    if block.cache.redis_url is None:
        cache: Cache = MemoryCache(clock=clock, cleanup_every=block.cache.cleanup_interval, watch=metrics.cache)
        return Caches(cache if _is_used(settings) else None, rate, block.cache.ttl)
    key = hmac.digest(jwt_secret(settings).encode(), f"idempotency cache, {life}".encode(), hashlib.sha256)
    host = RedisHost(block.cache.redis_url, clock=clock, on_change=metrics.redis_up.set)
    shared = RedisRate(settings.do_rate_per_minute, RATE_WINDOW, host=host, key=key, without_server=rate)
    stack.push_async_callback(shared.close)
    if not _is_used(settings):
        return Caches(None, shared, block.cache.redis_ttl)
    cache = RedisCache(host, key=key, clock=clock, watch=metrics.cache)
    stack.push_async_callback(cache.close)
    return Caches(cache, shared, block.cache.redis_ttl)


def _is_used(settings: Settings) -> bool:
    return settings.idempotency.enabled and settings.idempotency.behavior.return_cached_result
