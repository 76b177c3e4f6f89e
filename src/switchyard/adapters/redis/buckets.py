"""Token buckets that several gateways share through Redis."""

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Literal

from switchyard.adapters.redis.batches import Batches
from switchyard.adapters.redis.host import Command, RedisHost, RedisUnavailable
from switchyard.adapters.redis.scripts import BUCKET
from switchyard.adapters.redis.seal import Seal
from switchyard.ports.cache import TokenBuckets

PREFIX = "switchyard:bucket"
Step = Literal["take", "put_back", "wait"]


class RedisBuckets:
    """ports.buckets.TokenBuckets by the server's clock; while Redis is unavailable, each gateway has its own."""

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
            ("EVAL", BUCKET, 1, f"{PREFIX}:{self._seal.name(account)}", self._interval_us, self._burst, step)
            for step, account in requests
        ]
        try:
            replies = await self._link.ask(commands)
        except RedisUnavailable:
            return [None] * len(requests)
        # A reply that is not a number is an error from the server: use the local bucket.
        return [reply if isinstance(reply, int) else None for reply in replies]
