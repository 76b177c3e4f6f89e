"""Rate limits that all gateways share through Redis: token buckets of accounts and of requests."""

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Literal

from switchyard.adapters.redis.host import Batches, Command, RedisHost, RedisUnavailable
from switchyard.adapters.redis.scripts import BUCKET, TAKE, Seal
from switchyard.ports.cache import Counted, SharedRate, TokenBuckets

BUCKET_PREFIX = "switchyard:bucket"
Step = Literal["take", "put_back", "wait"]


class RedisBuckets:
    """ports.cache.TokenBuckets by the server's clock; while Redis is unavailable, each gateway has its own."""

    def __init__(
        self, per_second: Decimal, burst: int, *, host: RedisHost, key: bytes, without_server: TokenBuckets
    ) -> None:
        assert per_second > 0 and burst > 0, "rate and burst must be positive"
        self._interval_us = f"{1_000_000 / per_second:.6f}"
        self._burst = burst
        self._longest = timedelta(seconds=float(1 / per_second))
        """The wait for one token."""
        self._seal = Seal(key)
        self._link = host.link()
        self._without_server = without_server
        self._requests: Batches[tuple[Step, str], int | None] = Batches(self._ask_all)

    async def take(self, account: str) -> timedelta | None:
        """Take a token and return None, or return how long to wait for the next one."""
        wait_us = await self._requests.ask(("take", account))
        return await self._without_server.take(account) if wait_us is None else self._as_wait(wait_us)

    async def put_back(self, account: str) -> None:
        """Return a token that was not needed."""
        if await self._requests.ask(("put_back", account)) is None:
            await self._without_server.put_back(account)

    async def wait(self, account: str) -> timedelta | None:
        """Return how long `take` would have to wait; takes nothing."""
        wait_us = await self._requests.ask(("wait", account))
        return await self._without_server.wait(account) if wait_us is None else self._as_wait(wait_us)

    async def close(self) -> None:
        """Close the connection."""
        await self._requests.close()
        await self._link.close()

    def _as_wait(self, wait_us: int) -> timedelta | None:
        return min(timedelta(microseconds=wait_us), self._longest) if wait_us > 0 else None

    async def _ask_all(self, requests: Sequence[tuple[Step, str]]) -> list[int | None]:
        commands: list[Command] = [
            ("EVAL", BUCKET, 1, f"{BUCKET_PREFIX}:{self._seal.name(account)}", self._interval_us, self._burst, step)
            for step, account in requests
        ]
        try:
            replies = await self._link.ask(commands)
        except RedisUnavailable:
            return [None] * len(requests)
        # A reply that is not a number is an error from the server: use the local bucket.
        return [reply if isinstance(reply, int) else None for reply in replies]


RATE_PREFIX = "switchyard:rate"


class RedisRate:
    """ports.cache.SharedRate by the server's clock; while Redis is unavailable, each gateway limits on its own."""

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
            ("EVAL", TAKE, 1, f"{RATE_PREFIX}:{self._seal.name(client)}", self._limit, self._window_ms)
            for client in clients
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
