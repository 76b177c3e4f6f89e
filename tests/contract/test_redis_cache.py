"""Redis is down, slow, flushed, full or returns wrong data: lookups miss, no method raises, and the cache recovers."""

import asyncio
from collections.abc import AsyncIterator, Iterator, MutableMapping
from datetime import timedelta
from typing import Any

import pytest
import structlog

from switchyard.adapters.redis.cache import COUNTS, PREFIX, RedisCache
from switchyard.adapters.redis.host import FAILURES_MAX, REST_SECONDS_MIN, Breaker, RedisHost
from switchyard.adapters.redis.scripts import HEAD_LENGTH, RANK_LENGTH, VALUE_BYTES_MAX
from switchyard.adapters.system_clock import SystemClock
from switchyard.domain.ids import AccountId
from tests.support.cache import KEY, LONG_TIMEOUTS, CountingWatch, GatewayCaches, a_cache_entry, as_put
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.redis import RedisServer
from tests.support.scripted_redis import scripted_redis

OPENED = "redis_unavailable"
CLOSED = "redis_available"
Lines = list[MutableMapping[str, Any]]


@pytest.fixture
async def caches(redis_server: RedisServer) -> AsyncIterator[GatewayCaches]:
    redis_server.flush()
    caches = GatewayCaches(redis_server)
    yield caches
    await caches.close()


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server that the test may stop, kill or pause."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def lines() -> Iterator[Lines]:
    with structlog.testing.capture_logs() as lines:
        yield lines


class Gateway:
    """A cache on the system clock, whose breaker retries after milliseconds instead of seconds."""

    def __init__(self, url: str, **host: Any) -> None:
        clock = SystemClock()
        self.changes: list[bool] = []
        self.watch = CountingWatch()
        self.breaker = Breaker(clock, failures_max=3, rest_seconds_min=0.01, rest_seconds_max=0.04)
        host = {"breaker": self.breaker, "on_change": self.changes.append, **host}
        self.cache = RedisCache(RedisHost(url, clock=clock, **host), key=KEY, clock=clock, watch=self.watch)
        self._running = asyncio.create_task(self.cache.run())

    async def has(self, key: str) -> bool:
        return await self.cache.get(AccountId("acc-1"), "do/order", key) is not None

    async def put(self, key: str, ttl: timedelta = timedelta(hours=1)) -> None:
        """Put the entry until a lookup finds it; a write may be lost while the server is unreachable."""

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
    gateway = Gateway(own_server.url, **LONG_TIMEOUTS)
    yield gateway
    await gateway.close()


def entry_name(server: RedisServer) -> bytes:
    """The Redis key of the only entry."""
    (name,) = [name for name in server.ask("KEYS", "*") if name != COUNTS.encode()]
    assert isinstance(name, bytes)
    return name


# Wrong data


async def test_redis_keys_contain_neither_account_nor_idempotency_key(
    caches: GatewayCaches, redis_server: RedisServer
) -> None:
    await caches.put(a_cache_entry("secret-key", account="secret-account"))
    name = entry_name(redis_server).decode()
    assert name.startswith(f"{PREFIX}:")
    assert "secret" not in name


def wrong_values(value: bytes, other: bytes) -> dict[str, tuple[str | bytes, ...]]:
    """Redis commands that replace an entry by wrong data, made of its value and of another entry's value."""
    newest = b"9" * RANK_LENGTH
    return {
        "another entry": ("SET", other),
        "cut to the head": ("SET", value[:HEAD_LENGTH]),
        "cut by a byte": ("SET", value[:-1]),
        "with the highest precedence": ("SET", newest + value[RANK_LENGTH:]),
        "garbage that sorts last": ("SET", b"\xff" * 200),
        "one byte": ("SET", b"{"),
        "too large": ("SET", value + bytes(10 * VALUE_BYTES_MAX)),
        "a list": ("RPUSH", value),
        "a set": ("SADD", value),
        "a hash": ("HSET", "field", value),
    }


@pytest.mark.parametrize("case", wrong_values(b"", b""))
async def test_a_wrong_value_is_a_counted_miss_and_is_replaced_by_the_next_write(
    caches: GatewayCaches, redis_server: RedisServer, case: str
) -> None:
    await caches.put(a_cache_entry("other"))
    other = redis_server.ask("GET", entry_name(redis_server))
    redis_server.flush()
    entry = a_cache_entry("k")
    await caches.put(entry)
    name = entry_name(redis_server)
    command, *values = wrong_values(redis_server.ask("GET", name), other)[case]
    redis_server.ask("DEL", name)
    redis_server.ask(command, name, *values)

    assert await caches.get("k") is None
    assert caches.watch.errors == {"wrong_entry": 1}
    caches.cache.put(entry)  # as a gateway does after a miss, before the queue is written
    await caches.write_queues()
    assert await caches.get("k") == entry
    assert caches.watch.errors == {"wrong_entry": 1}


async def test_a_value_that_is_found_wrong_during_a_write_does_not_cost_the_entry(
    caches: GatewayCaches, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = caches.add_gateway(key=bytes(32))
    names = {}
    for key in ("first", "second"):
        await caches.put(a_cache_entry(key))
        names[key] = entry_name(redis_server)
        redis_server.flush()
    await caches.put(a_cache_entry("other"), cache=wrong)
    value = redis_server.ask("GET", entry_name(redis_server))
    for name in names.values():
        redis_server.ask("SET", name, value)
    cache, entry = caches.cache, a_cache_entry("second")
    assert isinstance(cache, RedisCache)
    assert await caches.get("first") is None
    send = cache._writes.ask

    async def send_after_a_lookup(*args: Any, **options: Any) -> list[Any]:
        monkeypatch.setattr(cache._writes, "ask", send)
        assert await caches.get("second") is None
        cache.put(entry)
        return await send(*args, **options)

    monkeypatch.setattr(cache._writes, "ask", send_after_a_lookup)
    while await cache.write_once():
        pass
    assert await caches.get("second") == entry


async def test_an_entry_sealed_with_another_key_is_a_miss(caches: GatewayCaches) -> None:
    other_installation = caches.add_gateway(key=bytes(32))
    await caches.put(a_cache_entry("k"), cache=other_installation)
    assert await caches.get("k") is None


async def test_an_expired_entry_that_is_written_again_is_a_miss(
    caches: GatewayCaches, redis_server: RedisServer
) -> None:
    await caches.put(a_cache_entry("k", ttl=timedelta(hours=1)))
    name = entry_name(redis_server)
    value = redis_server.ask("GET", name)
    caches.clock.advance(timedelta(hours=1))
    redis_server.ask("SET", name, value)
    assert await caches.get("k") is None


async def test_wrong_counts_affect_statistics_only(caches: GatewayCaches, redis_server: RedisServer) -> None:
    redis_server.ask(
        "HSET", COUNTS, "nonsense", "1", "9999999999:0000000000:c", "many", "9999999999:0000000000:p", "-5"
    )
    await caches.put(a_cache_entry("k"))
    stats = await caches.cache.stats()
    assert (stats.entries, stats.by_status) == (1, {"completed": 1})
    redis_server.ask("DEL", COUNTS)
    redis_server.ask("SET", COUNTS, "not a hash")
    await caches.put(a_cache_entry("k2"))
    assert await caches.get("k2") is not None
    assert (await caches.cache.stats()).entries == 0


async def test_counts_of_entries_that_expired_long_ago_are_removed(
    caches: GatewayCaches, redis_server: RedisServer
) -> None:
    await caches.put(a_cache_entry("k", ttl=timedelta(minutes=1)))
    assert redis_server.ask("HLEN", COUNTS) == 1
    caches.clock.advance(timedelta(hours=1))
    await caches.cache.stats()
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
async def test_an_invalid_reply_is_a_miss(answer: bytes) -> None:
    async with scripted_redis(answer) as url:
        gateway = Gateway(url)
        for number in range(10):
            gateway.cache.put(a_cache_entry("k", created_at=SystemClock().now()))
            assert not await gateway.has(f"k{number}")
        await gateway.cache.forget(AccountId("acc-1"), "do/order", "k")
        assert (await gateway.cache.stats()).entries == 0
        assert gateway.watch.errors
        await gateway.close()


# Flushed, full


async def test_after_a_flush_lookups_miss_and_writes_continue(caches: GatewayCaches, redis_server: RedisServer) -> None:
    await caches.put(a_cache_entry("k"))
    redis_server.flush()
    assert await caches.get("k") is None
    assert (await caches.cache.stats()).entries == 0
    await caches.put(a_cache_entry("k"))
    assert await caches.get("k") is not None
    assert caches.watch.errors == {}


async def test_redis_expires_entries(own_server: RedisServer, gateway: Gateway) -> None:
    await gateway.put("short", ttl=timedelta(milliseconds=200))
    await gateway.put("long")
    await until(lambda: own_server.ask("DBSIZE") == 2)  # the entry `long` and the counts
    assert await gateway.has("long")
    assert not await gateway.has("short")


@pytest.mark.parametrize("policy", ["allkeys-lru", "noeviction"])
async def test_a_full_server_loses_entries_and_does_not_open_the_breaker(policy: str) -> None:
    with RedisServer({"maxmemory": "4mb", "maxmemory-policy": policy}) as server:
        gateway = Gateway(server.url, **LONG_TIMEOUTS)
        for number in range(1000):
            response = "x" * 10_000
            entry = a_cache_entry(str(number), created_at=SystemClock().now(), response=response)
            gateway.cache.put(entry)
            found = as_put(await gateway.cache.get(entry.account_id, entry.operation, entry.idempotency_key))
            assert found in (None, entry)
        while await gateway.cache.write_once():
            pass
        found_count = sum([await gateway.has(str(number)) for number in range(1000)])
        assert 0 < found_count < 1000
        # With eviction every write succeeds, and an older entry is lost instead.
        assert gateway.watch.errors["refused"] == (1000 - found_count if policy == "noeviction" else 0)
        assert not gateway.breaker.is_open
        await gateway.close()


async def test_a_full_write_queue_drops_and_counts_the_oldest_writes(caches: GatewayCaches) -> None:
    cache = caches.add_gateway(queue_max=10)
    entries = [a_cache_entry(str(number)) for number in range(25)]
    await caches.put(*entries, cache=cache)
    found = [await caches.get(str(number)) for number in range(25)]
    assert found == [None] * 15 + entries[15:]
    assert caches.watch.errors == {"dropped": 15}


# Down, slow


async def test_a_killed_server_is_logged_once_and_used_again_after_its_restart(
    own_server: RedisServer, gateway: Gateway, lines: Lines
) -> None:
    await gateway.put("k")
    own_server.kill()
    for _ in range(100):
        assert not await gateway.has("k")
    assert gateway.breaker.is_open
    stats = await gateway.cache.stats()
    assert (stats.is_reachable, stats.entries) == (False, 0)
    assert gateway.watch.errors["unavailable"] >= 3
    assert [line["event"] for line in lines] == [OPENED]

    own_server.start()
    await gateway.put("k")
    assert [line["event"] for line in lines] == [OPENED, CLOSED]
    assert [line["log_level"] for line in lines] == ["warning", "info"]
    assert gateway.changes == [False, True]


async def test_an_unreachable_server_is_tried_once_per_rest(own_server: RedisServer) -> None:
    caches = GatewayCaches(own_server)
    own_server.kill()
    tries = (FAILURES_MAX, 1, 1, 1)
    for number, rest_seconds in enumerate((0, REST_SECONDS_MIN, 2 * REST_SECONDS_MIN, 4 * REST_SECONDS_MIN)):
        caches.clock.advance(timedelta(seconds=rest_seconds))
        for _ in range(100):
            assert await caches.get("k") is None
        assert caches.watch.errors == {"unavailable": sum(tries[: number + 1])}
    await caches.close()


async def test_a_long_outage_is_one_log_line(own_server: RedisServer, gateway: Gateway, lines: Lines) -> None:
    own_server.kill()

    async def has_tried_often() -> bool:
        assert not await gateway.has("k")
        return gateway.watch.errors["unavailable"] >= 10

    await until(has_tried_often)
    assert [line["event"] for line in lines] == [OPENED]


async def test_a_server_that_never_existed_causes_misses_only() -> None:
    gateway = Gateway(f"redis://127.0.0.1:{free_port()}/0")
    for number in range(100):
        gateway.cache.put(a_cache_entry(str(number), created_at=SystemClock().now()))
        assert not await gateway.has(str(number))
    assert gateway.breaker.is_open
    await gateway.close()


async def test_a_restart_does_not_open_the_breaker(own_server: RedisServer, gateway: Gateway) -> None:
    await gateway.put("k")
    own_server.stop()
    own_server.start()
    await gateway.put("k")
    assert gateway.changes == []


async def test_lookups_of_a_paused_server_time_out_and_open_the_breaker(own_server: RedisServer, lines: Lines) -> None:
    gateway = Gateway(own_server.url)
    await gateway.put("k")
    lines.clear()
    own_server.pause()
    # The server sends nothing, but its kernel still accepts connections; without a time-out these would hang.
    assert await asyncio.gather(*(gateway.has("k") for _ in range(200))) == [False] * 200
    while not gateway.breaker.is_open:
        assert not await gateway.has("k")
    assert [line["event"] for line in lines] == [OPENED]
    own_server.resume()
    await until(lambda: gateway.has("k"))
    assert lines[-1]["event"] == CLOSED
    await gateway.close()


async def test_a_late_reply_is_not_taken_for_the_next_lookup(own_server: RedisServer) -> None:
    gateway = Gateway(own_server.url)
    for key in ("a", "b", "c"):
        await gateway.put(key)
    for _ in range(20):
        own_server.pause()
        lookup = asyncio.create_task(gateway.has("a"))
        await asyncio.sleep(0)
        own_server.resume()
        await lookup
        for key in ("b", "c", "never put"):
            found = await gateway.cache.get(AccountId("acc-1"), "do/order", key)
            assert found is None or found.idempotency_key == key
    assert gateway.watch.errors["wrong_entry"] == 0
    await gateway.close()


async def test_a_cancelled_lookup_does_not_affect_others(caches: GatewayCaches) -> None:
    await caches.put(a_cache_entry("k"))
    lookups = [asyncio.create_task(caches.get("k")) for _ in range(100)]
    await asyncio.sleep(0)
    for lookup in lookups[::2]:
        lookup.cancel()
    found = await asyncio.gather(*lookups[1::2])
    assert all(entry is not None for entry in found)


async def test_close_ends_lookups_under_way(caches: GatewayCaches) -> None:
    lookups = [asyncio.create_task(caches.get("k")) for _ in range(10)]
    await asyncio.sleep(0)
    await caches.cache.close()
    assert await asyncio.gather(*lookups) == [None] * 10
