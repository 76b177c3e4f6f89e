"""Open the idempotency cache and the rate limits: in memory, or on Redis where one is configured.

The client of Redis is loaded only then: it takes 0.4 s, and loads OpenTelemetry where that is installed.
"""

import hashlib
import hmac
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from switchyard.adapters.memory.buckets import MemoryBuckets
from switchyard.adapters.memory.cache import MemoryCache
from switchyard.adapters.memory.rates import MemoryRate
from switchyard.domain.risk.checks import RiskLimits
from switchyard.ports.cache import Cache, SharedRate, TokenBuckets
from switchyard.ports.clock import Clock
from switchyard.settings import Settings, jwt_secret
from switchyard.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from switchyard.adapters.redis.host import RedisHost

RATE_WINDOW = timedelta(minutes=1)


# Each has its last requests in memory, up to 600: fewer clients than of `/do/order`, all with a token.
PDCA_CLIENTS_MAX = 1_000
# No order waits for the PDCA API: it can wait longer for a shared count than order entry.
PDCA_RATE_SECONDS = 0.1
PdcaRateName = Literal["read", "recheck", "recheck_all"]
PdcaLimits = dict[PdcaRateName, tuple[int, SharedRate]]


class Caches:
    """The cache and the rate limits of one process."""

    pdca_rates: PdcaLimits
    """Of the PDCA API, by client: the limits and their counters."""

    def __init__(self, cache: Cache | None, rate: SharedRate, ttl: timedelta, order_rate: TokenBuckets | None) -> None:
        self.cache = cache
        """None where the settings disable it."""
        self.rate = rate
        """Of `/do/order`, by client."""
        self.ttl = ttl
        self.order_rate = order_rate
        """Of new orders, by account; none without a limit."""


def open_caches(settings: Settings, incarnation: str, clock: Clock, metrics: Metrics, stack: AsyncExitStack) -> Caches:
    """Open the caches and rate limits that the settings ask for; the stack closes them."""
    caches = _open_caches(settings, incarnation, clock, metrics, stack)
    caches.pdca_rates = _open_pdca_rates(settings, incarnation, clock, metrics, stack)
    return caches


def _open_caches(settings: Settings, incarnation: str, clock: Clock, metrics: Metrics, stack: AsyncExitStack) -> Caches:
    """Open the cache and the rates of orders.

    Entries on Redis are sealed with the database's incarnation, which changes when a backup is restored: an entry
    from before may name an order that the restored database does not have, so it must be a miss.
    """
    idempotency = settings.idempotency
    metrics.cache.tracks_hits = idempotency.monitoring.track_cache_hit_rate
    rate: SharedRate = MemoryRate(settings.do_rate_per_minute, RATE_WINDOW, clock=clock)
    own = _own_buckets(settings.risk, clock)
    if idempotency.cache.redis_url is None:
        cache: Cache = MemoryCache(clock=clock, cleanup_every=idempotency.cache.cleanup_interval, watch=metrics.cache)
        return Caches(cache if _is_enabled(settings) else None, rate, idempotency.cache.ttl, own)
    from switchyard.adapters.redis.cache import RedisCache
    from switchyard.adapters.redis.host import RedisHost
    from switchyard.adapters.redis.rates import RedisRate

    key = hmac.digest(jwt_secret(settings).encode(), f"idempotency cache, {incarnation}".encode(), hashlib.sha256)
    host = RedisHost(idempotency.cache.redis_url, clock=clock, on_change=metrics.redis_up.set)
    shared = RedisRate(settings.do_rate_per_minute, RATE_WINDOW, host=host, key=key, without_server=rate)
    stack.push_async_callback(shared.close)
    buckets = _shared_buckets(settings.risk, host, key, own, stack)
    if not _is_enabled(settings):
        return Caches(None, shared, idempotency.cache.redis_ttl, buckets)
    cache = RedisCache(host, key=key, clock=clock, watch=metrics.cache)
    stack.push_async_callback(cache.close)
    return Caches(cache, shared, idempotency.cache.redis_ttl, buckets)


def _open_pdca_rates(
    settings: Settings, incarnation: str, clock: Clock, metrics: Metrics, stack: AsyncExitStack
) -> PdcaLimits:
    api = settings.pdca_api
    limits: dict[PdcaRateName, int] = {
        "read": api.read_rate,
        "recheck": api.recheck_rate,
        "recheck_all": api.recheck_all_rate,
    }
    redis_url = settings.idempotency.cache.redis_url
    own = {
        name: MemoryRate(limit, RATE_WINDOW, clock=clock, clients_max=PDCA_CLIENTS_MAX)
        for name, limit in limits.items()
    }
    if redis_url is None:
        return {name: (limits[name], rate) for name, rate in own.items()}
    from switchyard.adapters.redis.host import RedisHost
    from switchyard.adapters.redis.rates import RedisRate

    host = RedisHost(redis_url, clock=clock, read_seconds=PDCA_RATE_SECONDS, on_change=metrics.redis_up.set)
    key = hmac.digest(jwt_secret(settings).encode(), f"pdca rates, {incarnation}".encode(), hashlib.sha256)
    rates: PdcaLimits = {}
    for name, limit in limits.items():
        shared = RedisRate(limit, RATE_WINDOW, host=host, key=key, without_server=own[name])
        stack.push_async_callback(shared.close)
        rates[name] = limit, shared
    return rates


def _own_buckets(risk: RiskLimits, clock: Clock) -> MemoryBuckets | None:
    return None if risk.rate_per_sec is None else MemoryBuckets(risk.rate_per_sec, risk.burst, clock=clock)


def _shared_buckets(
    risk: RiskLimits, host: "RedisHost", key: bytes, own: MemoryBuckets | None, stack: AsyncExitStack
) -> TokenBuckets | None:
    if risk.rate_per_sec is None or own is None:
        return None
    from switchyard.adapters.redis.buckets import RedisBuckets

    buckets = RedisBuckets(risk.rate_per_sec, risk.burst, host=host, key=key, without_server=own)
    stack.push_async_callback(buckets.close)
    return buckets


def _is_enabled(settings: Settings) -> bool:
    return settings.idempotency.enabled and settings.idempotency.behavior.return_cached_result
