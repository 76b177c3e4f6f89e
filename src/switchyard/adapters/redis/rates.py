"""Rate limits that several gateways share through Redis."""

from collections.abc import Sequence
from datetime import timedelta

from switchyard.adapters.redis.batches import Batches
from switchyard.adapters.redis.host import Command, RedisHost, RedisUnavailable
from switchyard.adapters.redis.scripts import TAKE
from switchyard.adapters.redis.seal import Seal
from switchyard.ports.rates import SharedRate

PREFIX = "switchyard:rate"


class RedisRate:
    """ports.rates.SharedRate by the server's clock; while Redis is unavailable, each gateway limits on its own."""

    def __init__(
        self, limit: int, window: timedelta, *, host: RedisHost, key: bytes, without_server: SharedRate
    ) -> None:
        assert limit > 0 and window >= timedelta(milliseconds=1), "limit must be at least 1 and window at least 1 ms"
        self._limit = limit
        self._window_ms = int(window / timedelta(milliseconds=1))
        self._seal = Seal(key)
        self._link = host.link()
        self._without_server = without_server
        self._requests: Batches[str, int | None] = Batches(self._take_all)

    async def take(self, client: str) -> timedelta | None:
        """Return None if the request is allowed, else how long to wait."""
        wait_ms = await self._requests.ask(client)
        if wait_ms is None:
            return await self._without_server.take(client)
        return timedelta(milliseconds=min(wait_ms, self._window_ms)) if wait_ms > 0 else None

    async def close(self) -> None:
        """Close the connection."""
        await self._requests.close()
        await self._link.close()

    async def _take_all(self, clients: Sequence[str]) -> list[int | None]:
        commands: list[Command] = [
            ("EVAL", TAKE, 1, f"{PREFIX}:{self._seal.name(client)}", self._limit, self._window_ms) for client in clients
        ]
        try:
            replies = await self._link.ask(commands)
        except RedisUnavailable:
            return [None] * len(clients)
        # A reply that is not a number is an error from the server: use the local limit.
        return [reply if isinstance(reply, int) else None for reply in replies]
