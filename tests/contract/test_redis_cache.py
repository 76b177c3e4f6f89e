"""Redis down, slow, emptied, full or lying: lookups miss, nothing raises, and it comes back by itself."""

import asyncio
from collections.abc import AsyncIterator, Iterator, MutableMapping
from datetime import timedelta
from typing import Any

import pytest
import structlog

from switchyard.adapters.redis.breaker import FAILURES_MAX, REST_SECONDS_MIN, Breaker
from switchyard.adapters.redis.cache import COUNTS, PREFIX, RedisCache
from switchyard.adapters.redis.host import RedisHost
from switchyard.adapters.redis.seal import HEAD_LENGTH, RANK_LENGTH, VALUE_BYTES_MAX
from switchyard.adapters.system_clock import SystemClock
from switchyard.domain.ids import AccountId
from switchyard.ports.cache import Cache
from tests.support.cache import KEY, PATIENT, CacheHouse, Watched, a_cache_entry
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.redis import RedisServer
from tests.support.scripted_redis import scripted_redis

OPENED = "redis does not answer and is left alone for a while"
CLOSED = "redis answers again"
Lines = list[MutableMapping[str, Any]]


@pytest.fixture
async def house(redis_server: RedisServer) -> AsyncIterator[CacheHouse]:
    redis_server.flush()
    house = CacheHouse(redis_server)
    yield house
    await house.close()


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server to harm."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def lines() -> Iterator[Lines]:
    with structlog.testing.capture_logs() as lines:
        yield lines


class Gateway:
    """A cache on the real clock, with a breaker that rests for moments rather than seconds."""

    def __init__(self, url: str, **host: Any) -> None:
        clock = SystemClock()
        self.changes: list[bool] = []
        self.watched = Watched()
        self.breaker = Breaker(clock, failures_max=3, rest_seconds_min=0.01, rest_seconds_max=0.04)
        host = {"breaker": self.breaker, "on_change": self.changes.append, **host}
        self.cache = RedisCache(RedisHost(url, clock=clock, **host), key=KEY, clock=clock, watch=self.watched)
        self._running = asyncio.create_task(self.cache.run())

    async def has(self, key: str) -> bool:
        return await self.cache.get(AccountId("acc-1"), "do/order", key) is not None

    async def put(self, key: str, ttl: timedelta = timedelta(hours=1)) -> None:
        """Put and wait until it is found, again where it was lost on the way."""

        async def is_found() -> bool:
            self.cache.put(a_cache_entry(key, created_at=SystemClock().now(), ttl=ttl))
            await asyncio.sleep(0)
            return await self.has(key)

        await until(is_found)

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.wait({self._running})
        await self.cache.close()


@pytest.fixture
async def gateway(own_server: RedisServer) -> AsyncIterator[Gateway]:
    gateway = Gateway(own_server.url, **PATIENT)
    yield gateway
    await gateway.close()


def entry_name(server: RedisServer) -> bytes:
    """Where the only entry lies."""
    (name,) = [name for name in server.ask("KEYS", "*") if name != COUNTS.encode()]
    assert isinstance(name, bytes)
    return name


# Lies


async def test_names_on_the_server_give_neither_account_nor_key_away(
    house: CacheHouse, redis_server: RedisServer
) -> None:
    await house.put(a_cache_entry("secret-key", account="secret-account"))
    name = entry_name(redis_server).decode()
    assert name.startswith(f"{PREFIX}:")
    assert "secret" not in name


def planted(value: bytes, other: bytes) -> dict[str, tuple[str | bytes, ...]]:
    """What to write at an entry's name, given its own value and that of another entry, to make it a lie."""
    newest = b"9" * RANK_LENGTH
    return {
        "another entry": ("SET", other),
        "cut to the head": ("SET", value[:HEAD_LENGTH]),
        "cut by a byte": ("SET", value[:-1]),
        "with a claim to be the newest": ("SET", newest + value[RANK_LENGTH:]),
        "garbage that sorts last": ("SET", b"\xff" * 200),
        "one byte": ("SET", b"{"),
        "beyond all bounds": ("SET", value + bytes(10 * VALUE_BYTES_MAX)),
        "a list": ("RPUSH", value),
        "a set": ("SADD", value),
        "a hash": ("HSET", "field", value),
    }


@pytest.mark.parametrize("lie", planted(b"", b""))
async def test_a_planted_lie_is_a_counted_miss_and_makes_way_for_the_next_write(
    house: CacheHouse, redis_server: RedisServer, lie: str
) -> None:
    await house.put(a_cache_entry("other"))
    other = redis_server.ask("GET", entry_name(redis_server))
    redis_server.flush()
    entry = a_cache_entry("k")
    await house.put(entry)
    name = entry_name(redis_server)
    command, *values = planted(redis_server.ask("GET", name), other)[lie]
    redis_server.ask("DEL", name)
    redis_server.ask(command, name, *values)

    assert await house.get("k") is None
    assert house.watched.errors == {"wrong_entry": 1}
    house.cache.put(entry)  # as a gateway does after a miss, before anything waiting was written
    await house.settled()
    assert await house.get("k") == entry
    assert house.watched.errors == {"wrong_entry": 1}


async def test_entries_sealed_with_another_key_are_not_ours(house: CacheHouse) -> None:
    stranger = house.another(key=bytes(32))
    await house.put(a_cache_entry("k"), cache=stranger)
    assert await house.get("k") is None


async def test_an_expired_entry_that_is_put_back_is_a_miss(house: CacheHouse, redis_server: RedisServer) -> None:
    await house.put(a_cache_entry("k", ttl=timedelta(hours=1)))
    name = entry_name(redis_server)
    value = redis_server.ask("GET", name)
    house.clock.advance(timedelta(hours=1))
    redis_server.ask("SET", name, value)
    assert await house.get("k") is None


async def test_lies_in_the_counts_spoil_statistics_only(house: CacheHouse, redis_server: RedisServer) -> None:
    redis_server.ask(
        "HSET", COUNTS, "nonsense", "1", "9999999999:0000000000:c", "many", "9999999999:0000000000:p", "-5"
    )
    await house.put(a_cache_entry("k"))
    stats = await house.cache.stats()
    assert (stats.entries, stats.by_status) == (1, {"completed": 1})
    redis_server.ask("DEL", COUNTS)
    redis_server.ask("SET", COUNTS, "not a hash")
    await house.put(a_cache_entry("k2"))
    assert await house.get("k2") is not None
    assert (await house.cache.stats()).entries == 0


async def test_counts_of_what_expired_long_ago_are_removed(house: CacheHouse, redis_server: RedisServer) -> None:
    await house.put(a_cache_entry("k", ttl=timedelta(minutes=1)))
    assert redis_server.ask("HLEN", COUNTS) == 1
    house.clock.advance(timedelta(hours=1))
    await house.cache.stats()
    assert redis_server.ask("HLEN", COUNTS) == 0


@pytest.mark.parametrize(
    "answer",
    [
        b":1\r\n",
        b"*1\r\n$1\r\nx\r\n",
        b"*-1\r\n",
        b"$-1\r\n",
        b"+OK\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"$x\r\n",
        b"-LOADING\r\n",
        b"-NOAUTH no\r\n",
        b":x\r\n",
        b"\xff\xfe\r\n",
        b"$5\r\nab",
    ],
)
async def test_a_server_that_talks_nonsense_is_never_believed(answer: bytes) -> None:
    async with scripted_redis(answer) as url:
        gateway = Gateway(url)
        for number in range(10):
            gateway.cache.put(a_cache_entry("k", created_at=SystemClock().now()))
            assert not await gateway.has(f"k{number}")
        await gateway.cache.forget(AccountId("acc-1"), "do/order", "k")
        assert (await gateway.cache.stats()).entries == 0
        assert gateway.watched.errors
        await gateway.close()


# Emptied, full


async def test_after_a_flush_lookups_miss_and_writes_go_on(house: CacheHouse, redis_server: RedisServer) -> None:
    await house.put(a_cache_entry("k"))
    redis_server.flush()
    assert await house.get("k") is None
    assert (await house.cache.stats()).entries == 0
    await house.put(a_cache_entry("k"))
    assert await house.get("k") is not None
    assert house.watched.errors == {}


async def test_entries_leave_the_server_by_themselves(own_server: RedisServer, gateway: Gateway) -> None:
    await gateway.put("short", ttl=timedelta(milliseconds=200))
    await gateway.put("long")
    await until(lambda: own_server.ask("DBSIZE") == 2)  # the long one and the counts
    assert await gateway.has("long")
    assert not await gateway.has("short")


@pytest.mark.parametrize("policy", ["allkeys-lru", "noeviction"])
async def test_a_full_server_costs_entries_and_nothing_else(policy: str) -> None:
    with RedisServer({"maxmemory": "4mb", "maxmemory-policy": policy}) as server:
        gateway = Gateway(server.url, **PATIENT)
        for number in range(1000):
            response = "x" * 10_000
            entry = a_cache_entry(str(number), created_at=SystemClock().now(), response=response)
            gateway.cache.put(entry)
            found = await gateway.cache.get(entry.account_id, entry.operation, entry.idempotency_key)
            assert found in (None, entry)
        while await gateway.cache.write_once():
            pass
        found_count = sum([await gateway.has(str(number)) for number in range(1000)])
        assert 0 < found_count < 1000
        assert (gateway.watched.errors["refused"] > 0) == (policy == "noeviction")
        assert not gateway.breaker.is_open
        await gateway.close()


async def test_when_too_many_writes_wait_the_oldest_are_dropped_and_counted(house: CacheHouse) -> None:
    cache = house.another(queue_max=10)
    entries = [a_cache_entry(str(number)) for number in range(25)]
    await house.put(*entries, cache=cache)
    found = [await house.get(str(number)) for number in range(25)]
    assert found == [None] * 15 + entries[15:]
    assert house.watched.errors == {"dropped": 15}


# Down, slow


async def test_a_killed_server_is_missed_quietly_and_taken_up_again_by_itself(
    own_server: RedisServer, gateway: Gateway, lines: Lines
) -> None:
    await gateway.put("k")
    own_server.kill()
    for _ in range(100):
        assert not await gateway.has("k")
    assert gateway.breaker.is_open
    stats = await gateway.cache.stats()
    assert (stats.is_reachable, stats.entries) == (False, 0)
    assert gateway.watched.errors["unavailable"] >= 3
    assert [line["event"] for line in lines] == [OPENED]

    own_server.start()
    await gateway.put("k")
    assert [line["event"] for line in lines] == [OPENED, CLOSED]
    assert [line["log_level"] for line in lines] == ["warning", "info"]
    assert gateway.changes == [False, True]


async def test_a_server_that_does_not_answer_is_asked_once_per_rest(own_server: RedisServer) -> None:
    house = CacheHouse(own_server)
    own_server.kill()
    rests = (FAILURES_MAX, 1, 1, 1)
    for number, rest_seconds in enumerate((0, REST_SECONDS_MIN, 2 * REST_SECONDS_MIN, 4 * REST_SECONDS_MIN)):
        house.clock.advance(timedelta(seconds=rest_seconds))
        for _ in range(100):
            assert await house.get("k") is None
        assert house.watched.errors == {"unavailable": sum(rests[: number + 1])}
    await house.close()


async def test_a_long_outage_is_one_log_line(own_server: RedisServer, gateway: Gateway, lines: Lines) -> None:
    own_server.kill()

    async def has_tried_often() -> bool:
        assert not await gateway.has("k")
        return gateway.watched.errors["unavailable"] >= 10

    await until(has_tried_often)
    assert [line["event"] for line in lines] == [OPENED]


async def test_a_server_that_was_never_there_harms_nobody() -> None:
    gateway = Gateway(f"redis://127.0.0.1:{free_port()}/0")
    for number in range(100):
        gateway.cache.put(a_cache_entry(str(number), created_at=SystemClock().now()))
        assert not await gateway.has(str(number))
    assert gateway.breaker.is_open
    await gateway.close()


async def test_one_restart_costs_a_miss_and_no_breaker(own_server: RedisServer, gateway: Gateway) -> None:
    await gateway.put("k")
    own_server.stop()
    own_server.start()
    await gateway.put("k")
    assert gateway.changes == []


async def test_a_paused_server_is_missed_within_the_time_for_a_lookup_and_then_left_alone(
    own_server: RedisServer, lines: Lines
) -> None:
    gateway = Gateway(own_server.url)
    await gateway.put("k")
    lines.clear()
    own_server.pause()
    # That these come back at all is the point: the server answers nothing, and the kernel goes on taking connections.
    assert await asyncio.gather(*(gateway.has("k") for _ in range(200))) == [False] * 200
    while not gateway.breaker.is_open:
        assert not await gateway.has("k")
    assert [line["event"] for line in lines] == [OPENED]
    own_server.resume()
    await until(lambda: gateway.has("k"))
    assert lines[-1]["event"] == CLOSED
    await gateway.close()


async def test_answers_that_come_too_late_are_not_taken_for_the_next_ones(own_server: RedisServer) -> None:
    gateway = Gateway(own_server.url)
    for key in ("a", "b", "c"):
        await gateway.put(key)
    for _ in range(20):
        own_server.pause()
        under_way = asyncio.create_task(gateway.has("a"))
        await asyncio.sleep(0)
        own_server.resume()
        await under_way
        for key in ("b", "c", "never put"):
            found = await gateway.cache.get(AccountId("acc-1"), "do/order", key)
            assert found is None or found.idempotency_key == key
    assert gateway.watched.errors["wrong_entry"] == 0
    await gateway.close()


async def test_a_lookup_that_is_cancelled_harms_no_other(house: CacheHouse) -> None:
    await house.put(a_cache_entry("k"))
    lookups = [asyncio.create_task(house.get("k")) for _ in range(100)]
    await asyncio.sleep(0)
    for lookup in lookups[::2]:
        lookup.cancel()
    found = await asyncio.gather(*lookups[1::2])
    assert all(entry is not None for entry in found)


async def test_closing_in_the_middle_of_lookups_ends_them(house: CacheHouse) -> None:
    cache: Cache = house.cache
    lookups = [asyncio.create_task(house.get("k")) for _ in range(10)]
    await asyncio.sleep(0)
    await cache.close()
    assert await asyncio.gather(*lookups) == [None] * 10
