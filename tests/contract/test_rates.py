"""What every rate limit keeps to: never more than the limit within any window, and a true word on how long to wait."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from switchyard.adapters.memory.clock import ManualClock
from switchyard.adapters.memory.rates import MemoryRate
from switchyard.adapters.redis.breaker import Breaker
from switchyard.adapters.redis.host import RedisHost
from switchyard.adapters.redis.rates import PREFIX, RedisRate
from switchyard.adapters.system_clock import SystemClock
from switchyard.ports.clock import Clock
from switchyard.ports.rates import SharedRate
from tests.support.cache import KEY, PATIENT
from tests.support.polling import until
from tests.support.redis import RedisServer
from tests.support.scripted_redis import scripted_redis

LIMIT = 60
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


class RateHouse:
    """Limits over one store, as several gateways would have them."""

    def __init__(self, server: RedisServer | None) -> None:
        self.server = server
        self._opened: list[RedisRate] = []
        self._memory: dict[tuple[int, timedelta], MemoryRate] = {}

    def rate(self, limit: int = LIMIT, window: timedelta = MINUTE) -> SharedRate:
        clock = SystemClock()
        if self.server is None:
            return self._memory.setdefault((limit, window), MemoryRate(limit, window, clock=clock))
        host = RedisHost(self.server.url, clock=clock, **PATIENT)
        rate = RedisRate(limit, window, host=host, key=KEY, without_server=Rejecting())
        self._opened.append(rate)
        return rate

    async def close(self) -> None:
        for rate in self._opened:
            await rate.close()


class Rejecting:
    """What stands in for the server where the server must not be away."""

    async def take(self, client: str) -> timedelta | None:
        raise AssertionError("the server was there")


@pytest.fixture(params=["memory", "redis"])
async def house(request: pytest.FixtureRequest) -> AsyncIterator[RateHouse]:
    server = None
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        server.flush()
    house = RateHouse(server)
    yield house
    await house.close()


async def test_as_many_as_the_limit_go_ahead_and_the_next_is_told_how_long_to_wait(house: RateHouse) -> None:
    rate = house.rate()
    assert [await rate.take("client") for _ in range(LIMIT)] == [None] * LIMIT
    for _ in range(3):
        wait = await rate.take("client")
        assert wait is not None
        assert timedelta() < wait <= MINUTE


async def test_each_client_has_a_limit_of_its_own_whatever_it_is_called(house: RateHouse) -> None:
    rate = house.rate(limit=1)
    clients = ["", "a", "b", "::1", "127.0.0.1", "a b", "\0", "*", "\ud800", "x" * 10_000]
    assert [await rate.take(client) for client in clients] == [None] * len(clients)
    assert None not in [await rate.take(client) for client in clients]


async def test_after_the_wait_there_is_room_again(house: RateHouse) -> None:
    rate = house.rate(limit=2, window=timedelta(milliseconds=200))
    assert [await rate.take("client") for _ in range(2)] == [None, None]

    async def goes_ahead() -> bool:
        return await rate.take("client") is None

    await until(goes_ahead)


async def test_of_many_at_once_over_two_gateways_exactly_the_limit_goes_ahead(house: RateHouse) -> None:
    rates = [house.rate(window=timedelta(hours=1)) for _ in range(2)]
    taken = await asyncio.gather(*(rates[number % 2].take("client") for number in range(500)))
    assert taken.count(None) == LIMIT


# The window slides: shown where the clock is ours.


async def test_in_memory_room_comes_back_one_by_one_as_requests_leave_the_window() -> None:
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


async def test_in_memory_no_window_wherever_it_begins_holds_more_than_the_limit() -> None:
    clock = ManualClock()
    rate = MemoryRate(LIMIT, MINUTE, clock=clock)
    went: list[float] = []
    for _ in range(3000):
        if await rate.take("client") is None:
            went.append(clock.monotonic())
        clock.advance(timedelta(milliseconds=97))
    assert all(later - earlier >= 60 for earlier, later in zip(went, went[LIMIT:], strict=False))
    assert len(went) >= 4 * LIMIT


async def test_in_memory_a_client_that_was_quiet_the_longest_makes_room_for_another() -> None:
    rate = MemoryRate(1, MINUTE, clock=ManualClock(), clients_max=2)
    for client in ("a", "b", "c"):
        assert await rate.take(client) is None
    assert await rate.take("c") is not None
    assert await rate.take("b") is not None
    assert await rate.take("a") is None


# The server: away, lying, its clock moved.


class Gateway:
    """A shared limit with a fallback of its own."""

    def __init__(self, url: str, limit: int = LIMIT, **host: Any) -> None:
        clock: Clock = SystemClock()
        breaker = Breaker(clock, failures_max=3, rest_seconds_min=0.01, rest_seconds_max=0.04)
        self.alone = MemoryRate(limit, timedelta(hours=1), clock=clock)
        self.rate = RedisRate(
            limit,
            timedelta(hours=1),
            host=RedisHost(url, clock=clock, breaker=breaker, **host),
            key=KEY,
            without_server=self.alone,
        )


async def test_without_the_server_each_gateway_limits_by_itself_until_it_is_back() -> None:
    with RedisServer() as server:
        gateway = Gateway(server.url, limit=3, **PATIENT)
        assert [await gateway.rate.take("client") for _ in range(3)] == [None] * 3
        server.kill()
        assert [await gateway.rate.take("client") for _ in range(3)] == [None] * 3
        assert await gateway.rate.take("client") is not None
        server.start()

        async def is_shared_again() -> bool:
            await gateway.rate.take("another")
            return bool(server.ask("KEYS", f"{PREFIX}:*"))

        await until(is_shared_again)
        await gateway.rate.close()


@pytest.mark.parametrize("answer", [b"-ERR no\r\n", b"$3\r\nyes\r\n", b"*0\r\n", b"$-1\r\n", b"nonsense\r\n"])
async def test_an_answer_that_is_no_number_is_no_answer(answer: bytes) -> None:
    async with scripted_redis(answer) as url:
        gateway = Gateway(url, limit=2)
        taken = [await gateway.rate.take("client") for _ in range(5)]
        assert [wait is None for wait in taken] == [True, True, False, False, False]
        await gateway.rate.close()


async def test_a_paused_server_holds_nobody_up() -> None:
    with RedisServer() as server:
        gateway = Gateway(server.url)
        server.pause()
        assert await asyncio.gather(*(gateway.rate.take(str(number)) for number in range(100))) == [None] * 100
        server.resume()
        await gateway.rate.close()


@pytest.mark.parametrize(
    "planted",
    [("SET", "text"), ("LPUSH", "9999999999999"), ("LPUSH", "not a number"), ("SADD", "member")],
)
async def test_what_somebody_planted_neither_raises_nor_shuts_a_client_out(
    redis_server: RedisServer, planted: tuple[str, str]
) -> None:
    redis_server.flush()
    gateway = Gateway(redis_server.url, limit=1, **PATIENT)
    assert await gateway.rate.take("client") is None
    (name,) = redis_server.ask("KEYS", "*")
    redis_server.ask("DEL", name)
    redis_server.ask(planted[0], name, planted[1])
    assert await gateway.rate.take("client") is None
    await gateway.rate.close()


async def test_on_the_server_no_more_is_kept_than_the_limit_needs(redis_server: RedisServer) -> None:
    redis_server.flush()
    gateway = Gateway(redis_server.url, limit=3, **PATIENT)
    assert await gateway.rate.take("client") is None
    (name,) = redis_server.ask("KEYS", "*")
    redis_server.ask("RPUSH", name, *(["1000"] * 100))  # requests of long ago
    assert await gateway.rate.take("client") is None
    assert redis_server.ask("LLEN", name) == 3
    await gateway.rate.close()


async def test_on_the_server_a_client_leaves_nothing_behind_and_is_not_named(redis_server: RedisServer) -> None:
    redis_server.flush()
    gateway = Gateway(redis_server.url, **PATIENT)
    await gateway.rate.take("198.51.100.7")
    (name,) = redis_server.ask("KEYS", "*")
    assert b"198.51.100.7" not in name
    assert redis_server.ask("PTTL", name) > 0
    assert redis_server.ask("LLEN", name) == 1
    await gateway.rate.close()
