"""A thousand equal requests over two gateways are one order and 999 counted duplicates, also while Redis fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, NamedTuple

import aiohttp
import pytest
import pytest_asyncio

from tests.support.cluster import Cluster
from tests.support.figures import scrape_anew
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.posts import bearer, count_orders, post
from tests.support.process import Process
from tests.support.redis import RedisServer
from tests.support.upgraded import upgraded_database

REQUESTS = 1_000
CONNECTIONS = 100
# It may wait, because an order that expires on a busy machine may be placed again under its key.
ORDER = {"type": "LIMIT", "price": 1000}
NAMES = b"switchyard:idem:*"


class GatewaysWithRedis(NamedTuple):
    """Two gateways and a worker on one database, and the cache of the gateways."""

    gateways: tuple[Process, Process]
    redis: RedisServer


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """A server of its own, because the tests kill it."""
    with RedisServer() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(
    postgres_server: PostgresServer, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewaysWithRedis]:
    settings = {
        "SWITCHYARD_DATABASE_URL": await upgraded_database(postgres_server),
        "SWITCHYARD_REDIS_URL": redis.url,
        "IDEMPOTENCY_BEHAVIOR_LOG_DUPLICATES": "false",
        "IDEMPOTENCY_DERIVE": "somebody,listed-none",
    }
    cluster = Cluster(tmp_path_factory.mktemp("gateways"))
    one, two = (cluster.process("gateway", f"gateway-{number}", **settings) for number in range(2))
    worker = cluster.process("worker", "worker", **settings)
    try:
        await asyncio.gather(one.start(), two.start(), worker.start())
        yield GatewaysWithRedis((one, two), redis)
    finally:
        cluster.close()


async def flush_repeatedly(redis: RedisServer) -> None:
    while True:
        await asyncio.to_thread(redis.flush)
        await asyncio.sleep(0.01)


async def tamper_repeatedly(redis: RedisServer) -> None:
    """Replace the entries with what an attacker with access to Redis has: entries of other keys and changed bits.

    Some get the highest precedence in the digits at their start, so that a correct entry does not replace them.
    """
    highest = b"9" * 27
    while True:
        names: list[bytes] = await asyncio.to_thread(redis.ask, "KEYS", NAMES)
        kinds = {name: await asyncio.to_thread(redis.ask, "TYPE", name) for name in names}
        entries = [name for name, kind in kinds.items() if kind == b"string"]
        values = [await asyncio.to_thread(redis.ask, "GET", name) or b"" for name in entries]
        for number, name in enumerate(entries):
            other, own = values[number - 1], values[number]
            flipped = own[:-1] + bytes([own[-1] ^ 1]) if own else b"x"
            forged = (other, highest + other[27:], highest + own[27:], flipped)
            await asyncio.to_thread(redis.ask, "SET", name, forged[number % len(forged)])
        await asyncio.sleep(0.01)


async def kill(redis: RedisServer) -> None:
    await asyncio.to_thread(redis.kill)


FAULTS: dict[str, Callable[[RedisServer], Coroutine[Any, Any, None]]] = {
    "flushed": flush_repeatedly,
    "tampered": tamper_repeatedly,
    "killed": kill,
}


async def total(session: aiohttp.ClientSession, running: GatewaysWithRedis, name: str) -> float:
    return sum([(await scrape_anew(session, gateway.url)).get(name, 0) for gateway in running.gateways])


async def until_redis_is_used(session: aiohttp.ClientSession, running: GatewaysWithRedis) -> None:
    """Start the server if it was killed, and wait until both gateways are connected to it."""
    with contextlib.suppress(AssertionError):  # it is running
        running.redis.start()

    async def is_up() -> bool:
        for gateway in running.gateways:
            await post(session, gateway, {**bearer("prober"), "Idempotency-Key": "probe"}, type="LIMIT", price=1)
        return await total(session, running, "redis_up") == len(running.gateways)

    await until(is_up)


@pytest.mark.parametrize(
    ("way", "fault"), [("listed", "none"), *((way, fault) for fault in ("none", *FAULTS) for way in ("keyed", "asked"))]
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_thousand_equal_requests_are_one_order(running: GatewaysWithRedis, way: str, fault: str) -> None:
    headers = bearer(f"{way}-{fault}")
    by_way = {"keyed": {"Idempotency-Key": "once"}, "asked": {"Idempotency-Derive": "true"}, "listed": {}}[way]
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        await until_redis_is_used(session, running)
        before = await total(session, running, "idempotency_duplicate_orders_prevented_total")
        placed = await total(session, running, "orders_placed_total")
        wrong = await total(session, running, "idempotency_cache_errors_total{wrong_entry}")

        posts = [
            asyncio.ensure_future(post(session, running.gateways[number % 2], by_way, **ORDER))
            for number in range(REQUESTS)
        ]
        await until(lambda: sum(each.done() for each in posts) >= REQUESTS // 3)
        failing = asyncio.ensure_future(FAULTS[fault](running.redis)) if fault in FAULTS else None
        answers = await asyncio.gather(*posts)

        async def is_detected() -> bool:
            answers.append(await post(session, running.gateways[0], by_way, **ORDER))
            return await total(session, running, "idempotency_cache_errors_total{wrong_entry}") > wrong

        if fault == "tampered":
            await until(is_detected)  # without it the test would not show that a gateway read a forged entry
        if failing is not None:
            failing.cancel()
            await asyncio.wait({failing})

        assert len({answer["orderId"] for answer in answers}) == 1
        for gateway in running.gateways:
            assert await count_orders(session, gateway, headers) == 1
        assert await total(session, running, "orders_placed_total") == placed + 1
        prevented = await total(session, running, "idempotency_duplicate_orders_prevented_total") - before
        assert prevented == len(answers) - 1
