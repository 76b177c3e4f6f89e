"""Open the rate limits of venues: in memory, or shared by all workers on Redis where one is configured."""

import hashlib
import hmac
import math
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from switchyard.adapters.memory.buckets import MemoryBuckets
from switchyard.bootstrap.core import Core
from switchyard.flow.sending.dispatch import VenueRates
from switchyard.ports.cache import TokenBuckets
from switchyard.settings import VenueSettings, jwt_secret

if TYPE_CHECKING:
    from switchyard.adapters.redis.host import RedisHost


def open_rates(core: Core, stack: AsyncExitStack) -> VenueRates:
    """Open the buckets of the venues that have a rate; the stack closes them."""
    limited = [venue for venue in core.settings.venues if venue.rate_per_sec is not None]
    redis_url = core.settings.idempotency.cache.redis_url
    host = None
    if limited and redis_url is not None:
        from switchyard.adapters.redis.host import RedisHost  # loading the client takes long: see `caches.py`

        host = RedisHost(redis_url, clock=core.clock, on_change=core.metrics.redis_up.set)
    buckets = {venue.name: _bucket(venue, host, core, stack) for venue in limited}
    return VenueRates(buckets, core.clock, core.metrics)


def burst_of(venue: VenueSettings) -> int:
    """How many requests may be sent at once after a pause."""
    assert venue.rate_per_sec is not None, "a venue without a rate has no burst"
    return venue.burst or math.ceil(venue.rate_per_sec)


def _bucket(venue: VenueSettings, host: "RedisHost | None", core: Core, stack: AsyncExitStack) -> TokenBuckets:
    assert venue.rate_per_sec is not None, "a venue without a rate has no bucket"
    own = MemoryBuckets(venue.rate_per_sec, burst_of(venue), clock=core.clock)
    if host is None:
        return own
    from switchyard.adapters.redis.buckets import RedisBuckets

    # Of the installation: another one on the same Redis, with other credentials at the venue, has its own buckets.
    text = f"venue rate, {core.installation.id}"
    key = hmac.digest(jwt_secret(core.settings).encode(), text.encode(), hashlib.sha256)
    shared = RedisBuckets(venue.rate_per_sec, burst_of(venue), host=host, key=key, without_server=own)
    stack.push_async_callback(shared.close)
    return shared
