"""ports.journal.HeadFile and ports.journal.Lease on Redis: a restore or a copy of this machine does not touch them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import cast

import redis

# A start waits this long for a server that does not answer; it goes on without it then.
SECONDS_MAX = 1.0

# KEYS: the lease. ARGV: who asks, and the milliseconds to live. Returns who holds it then.
_TAKE = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return held end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
"""


class _Key:
    """One key on a connection of its own; a server that does not answer raises OSError."""

    def __init__(self, url: str, key: str) -> None:
        self._client = redis.Redis.from_url(url, socket_timeout=SECONDS_MAX, socket_connect_timeout=SECONDS_MAX)
        self._key = key

    @property
    def name(self) -> str:
        """The key, for messages; the URL may contain a password."""
        return f"the Redis key {self._key}"

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


class RedisHead(_Key):
    """ports.journal.HeadFile as the key `switchyard:head:<installation id>`."""

    is_shared = True

    def __init__(self, url: str, installation: str) -> None:
        super().__init__(url, f"switchyard:head:{installation}")

    def locked(self) -> AbstractContextManager[None]:
        """Nothing is locked: a head that went back is ahead again a second later."""
        return nullcontext()

    def read(self) -> bytes | None:
        """The content, or none if the key does not exist."""
        with _os_errors():
            return cast("bytes | None", self._client.get(self._key))

    def write(self, content: bytes) -> None:
        """Replace the content; as durable as the server is configured."""
        with _os_errors():
            self._client.set(self._key, content)


class RedisLease(_Key):
    """ports.journal.Lease as the key `switchyard:lease:<installation id>`, which expires unless it is renewed."""

    def __init__(self, url: str, installation: str) -> None:
        super().__init__(url, f"switchyard:lease:{installation}")

    def take(self, holder: str, ttl: timedelta) -> str:
        """Take or renew the lease for so long; returns who holds it then."""
        milliseconds = int(ttl.total_seconds() * 1000)
        with _os_errors():
            return cast(bytes, self._client.eval(_TAKE, 1, self._key, holder, str(milliseconds))).decode()


@contextmanager
def _os_errors() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise OSError(f"Redis does not answer: {error}") from error
