"""The contract of `TokenBuckets`, in memory and on Redis: never more tokens than the burst and the refill."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal

import pytest

from switchyard.adapters.memory.cache import MemoryBuckets
from switchyard.adapters.redis.host import RedisHost
from switchyard.adapters.redis.limits import BUCKET_PREFIX, RedisBuckets
from switchyard.adapters.system_clock import SystemClock
from switchyard.ports.cache import TokenBuckets
from tests.support.cache import KEY, LONG_TIMEOUTS
from tests.support.memory.clock import ManualClock
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.redis import RedisServer

SLOW = Decimal("0.001")
SECOND = timedelta(seconds=1)


class GatewayBuckets:
    """The buckets of several gateways over one store: the Redis server, or without one the memory."""

    def __init__(self, server: RedisServer | None) -> None:
        self._server = server
        self._opened: list[RedisBuckets] = []
        self._memory: dict[tuple[Decimal, int], MemoryBuckets] = {}

    def add_gateway(self, per_second: Decimal = SLOW, burst: int = 20) -> TokenBuckets:
        clock = SystemClock()
        if self._server is None:
            return self._memory.setdefault((per_second, burst), MemoryBuckets(per_second, burst, clock=clock))
        host = RedisHost(self._server.url, clock=clock, **LONG_TIMEOUTS)
        buckets = RedisBuckets(per_second, burst, host=host, key=KEY, without_server=UnexpectedFallback())
        self._opened.append(buckets)
        return buckets

    async def close(self) -> None:
        for buckets in self._opened:
            await buckets.close()


class UnexpectedFallback:
    """Fails the test if the server could not be reached."""

    async def take(self, account: str) -> timedelta | None:
        raise AssertionError("the Redis server did not reply")

    async def put_back(self, account: str) -> None:
        raise AssertionError("the Redis server did not reply")

    async def wait(self, account: str) -> timedelta | None:
        raise AssertionError("the Redis server did not reply")


@pytest.fixture(params=["memory", "redis"])
async def gateways(request: pytest.FixtureRequest) -> AsyncIterator[GatewayBuckets]:
    server = None
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        server.flush()
    gateways = GatewayBuckets(server)
    yield gateways
    await gateways.close()


async def test_a_full_bucket_has_the_burst_and_then_says_how_long_to_wait(gateways: GatewayBuckets) -> None:
    buckets = gateways.add_gateway(burst=3)
    assert [await buckets.take("acct") for _ in range(3)] == [None, None, None]
    wait = await buckets.take("acct")
    assert wait is not None
    assert 990 * SECOND < wait <= 1000 * SECOND
    assert await buckets.take("other") is None


async def test_looking_takes_no_token(gateways: GatewayBuckets) -> None:
    buckets = gateways.add_gateway(burst=1)
    assert [await buckets.wait("acct") for _ in range(5)] == [None] * 5
    assert await buckets.take("acct") is None
    wait = await buckets.wait("acct")
    assert wait is not None and wait > 990 * SECOND


async def test_a_token_that_is_put_back_can_be_taken_again(gateways: GatewayBuckets) -> None:
    buckets = gateways.add_gateway(burst=2)
    for _ in range(10):
        assert await buckets.take("acct") is None
        await buckets.put_back("acct")
    assert [await buckets.take("acct") is None for _ in range(3)] == [True, True, False]


async def test_a_token_that_was_never_taken_does_not_make_the_bucket_larger(gateways: GatewayBuckets) -> None:
    buckets = gateways.add_gateway(burst=2)
    for _ in range(5):
        await buckets.put_back("acct")
    assert [await buckets.take("acct") is None for _ in range(3)] == [True, True, False]


async def test_an_empty_bucket_is_refilled(gateways: GatewayBuckets) -> None:
    buckets = gateways.add_gateway(Decimal(20), burst=1)
    assert await buckets.take("acct") is None

    async def has_token() -> bool:
        return await buckets.take("acct") is None

    await until(has_token)


async def test_two_gateways_together_accept_exactly_the_burst(gateways: GatewayBuckets) -> None:
    pair = [gateways.add_gateway(burst=20) for _ in range(2)]
    waits = await asyncio.gather(*(pair[number % 2].take("acct") for number in range(300)))
    assert waits.count(None) == 20


async def test_memory_refills_at_its_rate_and_never_above_the_burst() -> None:
    clock = ManualClock()
    buckets = MemoryBuckets(Decimal(3), 4, clock=clock)
    taken = 0
    for _ in range(300):  # a hundred tenths more than the burst
        while await buckets.take("acct") is None:
            taken += 1
        clock.advance(SECOND / 10)
    assert taken in (4 + 89, 4 + 90)
    clock.advance(3600 * SECOND)
    assert [await buckets.take("acct") is None for _ in range(5)] == [True] * 4 + [False]
    assert await buckets.take("acct") == pytest.approx(SECOND / 3, abs=timedelta(microseconds=2))


async def test_memory_is_bounded() -> None:
    buckets = MemoryBuckets(SLOW, 1, clock=ManualClock(), accounts_max=2)
    for account in ("a", "b", "c"):
        assert await buckets.take(account) is None
    assert await buckets.take("c") is not None
    assert await buckets.take("a") is None  # the oldest was removed


async def test_without_the_server_each_gateway_has_its_own_buckets() -> None:
    clock = ManualClock()
    own = MemoryBuckets(SLOW, 2, clock=clock)
    host = RedisHost(f"redis://127.0.0.1:{free_port()}/0", clock=SystemClock())
    buckets = RedisBuckets(SLOW, 2, host=host, key=KEY, without_server=own)
    assert [await buckets.take("acct") is None for _ in range(3)] == [True, True, False]
    await buckets.put_back("acct")
    assert await buckets.wait("acct") is None
    assert await buckets.take("acct") is None
    await buckets.close()


async def test_redis_holds_no_account_name_and_forgets_a_full_bucket(redis_server: RedisServer) -> None:
    redis_server.flush()
    gateways = GatewayBuckets(redis_server)
    buckets = gateways.add_gateway(burst=2)
    await buckets.take("secret-account")
    [name] = redis_server.ask("KEYS", f"{BUCKET_PREFIX}:*")
    assert b"secret-account" not in name
    await buckets.put_back("secret-account")
    assert redis_server.ask("KEYS", f"{BUCKET_PREFIX}:*") == []
    await gateways.close()
