"""Rate limits that several gateways share through Redis."""

from collections.abc import Sequence
from datetime import timedelta

from switchyard.adapters.redis.batches import Batches
from switchyard.adapters.redis.host import Command, RedisHost, RedisUnavailable
from switchyard.adapters.redis.scripts import TAKE
from switchyard.adapters.redis.seal import Seal
from switchyard.ports.cache import Counted, SharedRate

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
        self._requests: Batches[str, tuple[int, int, int] | None] = Batches(self._take_all)

    async def take(self, client: str) -> timedelta | None:
        """Return None if the request is allowed, else how long to wait."""
        return (await self.count(client)).wait

    async def count(self, client: str) -> Counted:
        """Count a request, or reject it."""
        reply = await self._requests.ask(client)
        if reply is None:
            return await self._without_server.count(client)
        wait_ms, used, reset_ms = reply
        return Counted(
            timedelta(milliseconds=min(wait_ms, self._window_ms)) if wait_ms > 0 else None,
            max(self._limit - used, 0),
            timedelta(milliseconds=min(max(reset_ms, 0), self._window_ms)),
        )

    async def close(self) -> None:
        """Close the connection."""
        await self._requests.close()
        await self._link.close()

    async def _take_all(self, clients: Sequence[str]) -> list[tuple[int, int, int] | None]:
        commands: list[Command] = [
            ("EVAL", TAKE, 1, f"{PREFIX}:{self._seal.name(client)}", self._limit, self._window_ms) for client in clients
        ]
        try:
            replies = await self._link.ask(commands)
        except RedisUnavailable:
            return [None] * len(clients)
        return [_counted(reply) for reply in replies]


def _counted(reply: object) -> tuple[int, int, int] | None:
    """None for a reply that is not three numbers, an error from the server: use the local limit."""
    match reply:
        case [int(wait_ms), int(used), int(reset_ms)]:
            return wait_ms, used, reset_ms
    return None
