"""ports.head_file.HeadFile as a key on Redis: a copy of the head that a restore of this machine does not touch."""

from contextlib import AbstractContextManager, nullcontext
from typing import cast

import redis

# A start waits this long for a server that does not answer; heads are compared without it then.
SECONDS_MAX = 1.0


class RedisHead:
    """The head under `switchyard:head:<installation id>`; a server that does not answer raises OSError."""

    is_shared = True

    def __init__(self, url: str, installation: str) -> None:
        self._client = redis.Redis.from_url(url, socket_timeout=SECONDS_MAX, socket_connect_timeout=SECONDS_MAX)
        self._key = f"switchyard:head:{installation}"

    @property
    def name(self) -> str:
        """The key, for messages; the URL may contain a password."""
        return f"the Redis key {self._key}"

    def locked(self) -> AbstractContextManager[None]:
        """Nothing is locked: a head that went back is ahead again a second later."""
        return nullcontext()

    def read(self) -> bytes | None:
        """The content, or none if the key does not exist."""
        try:
            return cast("bytes | None", self._client.get(self._key))
        except redis.RedisError as error:
            raise OSError(f"Redis does not answer: {error}") from error

    def write(self, content: bytes) -> None:
        """Replace the content; as durable as the server is configured."""
        try:
            self._client.set(self._key, content)
        except redis.RedisError as error:
            raise OSError(f"Redis does not answer: {error}") from error

    def close(self) -> None:
        """Disconnect."""
        self._client.close()
