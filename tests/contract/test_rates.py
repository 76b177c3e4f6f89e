"""The contract of `SharedRate`, in memory and on Redis: no window has more requests than the limit."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from switchyard.adapters.memory.cache import MemoryRate
from switchyard.adapters.redis.host import Breaker, RedisHost
from switchyard.adapters.redis.limits import RATE_PREFIX, RedisRate
from switchyard.adapters.system_clock import SystemClock
from switchyard.ports.cache import Counted, SharedRate
from switchyard.ports.clock import Clock
from tests.support.cache import KEY, LONG_TIMEOUTS
from tests.support.memory.clock import ManualClock
from tests.support.polling import until
from tests.support.redis import RedisServer
from tests.support.scripted_redis import scripted_redis

LIMIT = 60
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


class GatewayRates:
    """The rate limits of several gateways over one store: the Redis server, or without one the memory."""

    def __init__(self, server: RedisServer | None) -> None:
        self.server = server
        self._opened: list[RedisRate] = []
        self._memory: dict[tuple[int, timedelta], MemoryRate] = {}

    def add_gateway(self, limit: int = LIMIT, window: timedelta = MINUTE) -> SharedRate:
        clock = SystemClock()
        if self.server is None:
            return self._memory.setdefault((limit, window), MemoryRate(limit, window, clock=clock))
        host = RedisHost(self.server.url, clock=clock, **LONG_TIMEOUTS)
        rate = RedisRate(limit, window, host=host, key=KEY, without_server=UnexpectedFallback())
        self._opened.append(rate)
        return rate

    async def close(self) -> None:
        for rate in self._opened:
            await rate.close()


class UnexpectedFallback:
    """Fails the test if the server could not be reached."""

    async def take(self, client: str) -> timedelta | None:
        raise AssertionError("the Redis server did not reply")

    async def count(self, client: str) -> Counted:
        raise AssertionError("the Redis server did not reply")


@pytest.fixture(params=["memory", "redis"])
async def rates(request: pytest.FixtureRequest) -> AsyncIterator[GatewayRates]:
    server = None
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        server.flush()
    rates = GatewayRates(server)
    yield rates
    await rates.close()


async def test_requests_above_the_limit_return_how_long_to_wait(rates: GatewayRates) -> None:
    rate = rates.add_gateway()
    assert [await rate.take("client") for _ in range(LIMIT)] == [None] * LIMIT
    for _ in range(3):
        wait = await rate.take("client")
        assert wait is not None
        assert timedelta() < wait <= MINUTE


async def test_a_counted_request_says_what_is_left(rates: GatewayRates) -> None:
    rate = rates.add_gateway(limit=3)
    counted = [await rate.count("client") for _ in range(4)]
    assert [one.remaining for one in counted] == [2, 1, 0, 0]
    assert [one.wait is None for one in counted] == [True, True, True, False]
    assert all(timedelta() < one.reset <= MINUTE for one in counted)
    assert counted[3].wait == counted[3].reset


async def test_each_client_has_its_own_limit_whatever_characters_it_contains(rates: GatewayRates) -> None:
    rate = rates.add_gateway(limit=1)
    clients = ["", "a", "b", "::1", "127.0.0.1", "a b", "\0", "*", "\ud800", "x" * 10_000]
    assert [await rate.take(client) for client in clients] == [None] * len(clients)
    assert None not in [await rate.take(client) for client in clients]


async def test_after_the_wait_a_request_is_accepted(rates: GatewayRates) -> None:
    rate = rates.add_gateway(limit=2, window=timedelta(milliseconds=200))
    assert [await rate.take("client") for _ in range(2)] == [None, None]

    async def is_accepted() -> bool:
        return await rate.take("client") is None

    await until(is_accepted)


async def test_two_gateways_together_accept_exactly_the_limit(rates: GatewayRates) -> None:
    gateways = [rates.add_gateway(window=timedelta(hours=1)) for _ in range(2)]
    waits = await asyncio.gather(*(gateways[number % 2].take("client") for number in range(500)))
    assert waits.count(None) == LIMIT


# The sliding window, in memory, where the test moves the clock.


async def test_memory_accepts_one_request_for_each_that_leaves_the_window() -> None:
    clock = ManualClock()
    rate = MemoryRate(2, MINUTE, clock=clock)
    assert await rate.take("client") is None
    clock.advance(20 * SECOND)
    assert await rate.take("client") is None
    clock.advance(30 * SECOND)
    assert await rate.take("client") == 10 * SECOND
    clock.advance(10 * SECOND)
    assert await rate.take("client") is None
    assert await rate.take("client") == 20 * SECOND


async def test_memory_accepts_at_most_the_limit_in_every_window() -> None:
    clock = ManualClock()
    rate = MemoryRate(LIMIT, MINUTE, clock=clock)
    accepted_at: list[float] = []
    for _ in range(3000):
        if await rate.take("client") is None:
            accepted_at.append(clock.monotonic())
        clock.advance(timedelta(milliseconds=97))
    assert all(later - earlier >= 60 for earlier, later in zip(accepted_at, accepted_at[LIMIT:], strict=False))
    assert len(accepted_at) >= 4 * LIMIT


async def test_memory_removes_the_client_with_the_oldest_request_when_it_is_full() -> None:
    rate = MemoryRate(1, MINUTE, clock=ManualClock(), clients_max=2)
    for client in ("a", "b", "c"):
        assert await rate.take(client) is None
    assert await rate.take("c") is not None
    assert await rate.take("b") is not None
    assert await rate.take("a") is None


# The server is unreachable, or returns wrong data.


class Gateway:
    """A shared limit with its own fallback, whose breaker retries after milliseconds instead of seconds."""

    def __init__(self, url: str, limit: int = LIMIT, **host: Any) -> None:
        clock: Clock = SystemClock()
        breaker = Breaker(clock, failures_max=3, rest_seconds_min=0.01, rest_seconds_max=0.04)
        self.fallback = MemoryRate(limit, timedelta(hours=1), clock=clock)
        self.rate = RedisRate(
            limit,
            timedelta(hours=1),
            host=RedisHost(url, clock=clock, breaker=breaker, **host),
            key=KEY,
            without_server=self.fallback,
        )


async def test_a_gateway_without_the_server_applies_the_limit_alone_until_the_server_is_back() -> None:
    with RedisServer() as server:
        gateway = Gateway(server.url, limit=3, **LONG_TIMEOUTS)
        assert [await gateway.rate.take("client") for _ in range(3)] == [None] * 3
        server.kill()
        assert [await gateway.rate.take("client") for _ in range(3)] == [None] * 3
        assert await gateway.rate.take("client") is not None
        server.start()

        async def is_shared_again() -> bool:
            await gateway.rate.take("another")
            return bool(server.ask("KEYS", f"{RATE_PREFIX}:*"))

        await until(is_shared_again)
        await gateway.rate.close()


@pytest.mark.parametrize("answer", [b"-ERR no\r\n", b"$3\r\nyes\r\n", b"*0\r\n", b"$-1\r\n", b"nonsense\r\n"])
async def test_an_invalid_reply_counts_as_no_reply(answer: bytes) -> None:
    async with scripted_redis(answer) as url:
        gateway = Gateway(url, limit=2)
        waits = [await gateway.rate.take("client") for _ in range(5)]
        assert [wait is None for wait in waits] == [True, True, False, False, False]
        await gateway.rate.close()


async def test_a_paused_server_delays_no_request() -> None:
    with RedisServer() as server:
        gateway = Gateway(server.url)
        server.pause()
        assert await asyncio.gather(*(gateway.rate.take(str(number)) for number in range(100))) == [None] * 100
        server.resume()
        await gateway.rate.close()


@pytest.mark.parametrize(
    "value",
    [("SET", "text"), ("LPUSH", "9999999999999"), ("LPUSH", "not a number"), ("SADD", "member")],
)
async def test_a_wrong_value_neither_raises_nor_blocks_the_client(
    redis_server: RedisServer, value: tuple[str, str]
) -> None:
    redis_server.flush()
    gateway = Gateway(redis_server.url, limit=1, **LONG_TIMEOUTS)
    assert await gateway.rate.take("client") is None
    (name,) = redis_server.ask("KEYS", "*")
    redis_server.ask("DEL", name)
    redis_server.ask(value[0], name, value[1])
    assert await gateway.rate.take("client") is None
    await gateway.rate.close()


async def test_redis_keeps_no_more_than_limit_times_per_client(redis_server: RedisServer) -> None:
    redis_server.flush()
    gateway = Gateway(redis_server.url, limit=3, **LONG_TIMEOUTS)
    assert await gateway.rate.take("client") is None
    (name,) = redis_server.ask("KEYS", "*")
    redis_server.ask("RPUSH", name, *(["1000"] * 100))  # old requests
    assert await gateway.rate.take("client") is None
    assert redis_server.ask("LLEN", name) == 3
    await gateway.rate.close()


async def test_redis_entries_expire_and_do_not_contain_the_client(redis_server: RedisServer) -> None:
    redis_server.flush()
    gateway = Gateway(redis_server.url, **LONG_TIMEOUTS)
    await gateway.rate.take("198.51.100.7")
    (name,) = redis_server.ask("KEYS", "*")
    assert b"198.51.100.7" not in name
    assert redis_server.ask("PTTL", name) > 0
    assert redis_server.ask("LLEN", name) == 1
    await gateway.rate.close()
