"""ports.lease.Lease as a key on Redis that expires unless its holder renews it."""

from datetime import timedelta
from typing import cast

import redis

from switchyard.adapters.redis.head import SECONDS_MAX

# KEYS: the lease. ARGV: who asks, and the milliseconds to live. Returns who holds it then.
_TAKE = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return held end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
"""


class RedisLease:
    """The lease under `switchyard:lease:<installation id>`; a server that does not answer raises OSError."""

    def __init__(self, url: str, installation: str) -> None:
        self._client = redis.Redis.from_url(
            url, socket_timeout=SECONDS_MAX, socket_connect_timeout=SECONDS_MAX, decode_responses=True
        )
        self._key = f"switchyard:lease:{installation}"

    @property
    def name(self) -> str:
        """The key, for messages; the URL may contain a password."""
        return f"the Redis key {self._key}"

    def take(self, holder: str, ttl: timedelta) -> str:
        """Take or renew the lease for so long; returns who holds it then."""
        try:
            milliseconds = int(ttl.total_seconds() * 1000)
            return cast(str, self._client.eval(_TAKE, 1, self._key, holder, str(milliseconds)))
        except redis.RedisError as error:
            raise OSError(f"Redis does not answer: {error}") from error

    def close(self) -> None:
        """Disconnect; the lease expires by itself."""
        self._client.close()
