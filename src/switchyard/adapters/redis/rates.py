"""Rate limits that several gateways share."""

from collections.abc import Sequence
from datetime import timedelta

from switchyard.adapters.redis.batches import Batches
from switchyard.adapters.redis.host import Command, RedisAway, RedisHost
from switchyard.adapters.redis.scripts import TAKE
from switchyard.adapters.redis.seal import Seal
from switchyard.ports.rates import SharedRate

PREFIX = "switchyard:rate"


class RedisRate:
    """ports.rates.SharedRate by the server's clock; while the server is away, each gateway counts for itself."""

    def __init__(
        self, limit: int, window: timedelta, *, host: RedisHost, key: bytes, without_server: SharedRate
    ) -> None:
        assert limit > 0 and window >= timedelta(milliseconds=1), "a limit must let something through"
        self._limit = limit
        self._window_ms = int(window / timedelta(milliseconds=1))
        self._seal = Seal(key)
        self._link = host.link()
        self._without_server = without_server
        self._asked: Batches[str, int | None] = Batches(self._take_all)

    async def take(self, client: str) -> timedelta | None:
        """Go ahead (none), or how long to wait."""
        wait_ms = await self._asked.ask(client)
        if wait_ms is None:
            return await self._without_server.take(client)
        return timedelta(milliseconds=min(wait_ms, self._window_ms)) if wait_ms > 0 else None

    async def close(self) -> None:
        """Hang up."""
        await self._asked.close()
        await self._link.close()

    async def _take_all(self, clients: Sequence[str]) -> list[int | None]:
        commands: list[Command] = [
            ("EVAL", TAKE, 1, f"{PREFIX}:{self._seal.name(client)}", self._limit, self._window_ms) for client in clients
        ]
        try:
            replies = await self._link.ask(commands)
        except RedisAway:
            return [None] * len(clients)
        # Anything but a number is a rejection of the server's.
        return [reply if isinstance(reply, int) else None for reply in replies]
