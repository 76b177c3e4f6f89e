"""A thousand equal requests over two gateways are one order, whatever Redis does meanwhile, and 999 are counted."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import pytest_asyncio

from tests.support.figures import scrape
from tests.support.postgres import PostgresServer
from tests.support.posts import bearer, count_orders, post
from tests.support.process import Process, run_command, until
from tests.support.redis import RedisServer

REQUESTS = 1_000
FAULTS = ("none", "flushed", "lying", "killed")
AT_ONCE = 100
# One that may wait: an order that expires because the machine is busy may be tried again, which is not the point here.
ORDER = {"type": "LIMIT", "price": 1000}
NAMES = b"switchyard:idem:*"


class House(NamedTuple):
    """Two gateways and a worker on one database, and their cache."""

    gateways: tuple[Process, Process]
    redis: RedisServer


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """A server of its own: this one is killed."""
    with RedisServer() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(
    postgres_server: PostgresServer, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[House]:
    settings = {
        "SWITCHYARD_DATABASE_URL": postgres_server.create_database(),
        "SWITCHYARD_REDIS_URL": redis.url,
        "IDEMPOTENCY_BEHAVIOR_LOG_DUPLICATES": "false",
        "IDEMPOTENCY_DERIVE": "somebody,listed-none",
    }
    assert run_command("db", "upgrade", **settings).returncode == 0
    folder: Path = tmp_path_factory.mktemp("house")
    one, two = (Process(folder / f"gateway-{n}", "gateway", **settings) for n in range(2))
    worker = Process(folder / "worker", "worker", **settings)
    try:
        await asyncio.gather(one.start(), two.start(), worker.start())
        yield House((one, two), redis)
    finally:
        for process in (one, two, worker):
            process.close()


async def flush_on(redis: RedisServer) -> None:
    while True:
        await asyncio.to_thread(redis.flush)
        await asyncio.sleep(0.01)


async def lie_on(redis: RedisServer) -> None:
    """Put whatever somebody with access to Redis can: others' true entries, true entries with a bit changed, rubbish.

    Each claims the highest precedence, in the digits in front, so that it is not simply written over.
    """
    highest = b"9" * 27
    while True:
        names: list[bytes] = await asyncio.to_thread(redis.ask, "KEYS", NAMES)
        entries = {name: await asyncio.to_thread(redis.ask, "TYPE", name) for name in names}
        true = [name for name, kind in entries.items() if kind == b"string"]
        values = [await asyncio.to_thread(redis.ask, "GET", name) or b"" for name in true]
        for number, name in enumerate(true):
            other, own = values[number - 1], values[number]
            lies = (other, highest + other[27:], highest + own[27:], own[:-1] + bytes([own[-1] ^ 1]) if own else b"x")
            await asyncio.to_thread(redis.ask, "SET", name, lies[number % len(lies)])
        await asyncio.sleep(0.01)


async def kill(redis: RedisServer) -> None:
    await asyncio.to_thread(redis.kill)


MISCHIEF: dict[str, Callable[[RedisServer], Coroutine[Any, Any, None]]] = {
    "flushed": flush_on,
    "lying": lie_on,
    "killed": kill,
}


async def total(session: aiohttp.ClientSession, house: House, name: str) -> float:
    return sum([(await scrape(session, gateway.url)).get(name, 0) for gateway in house.gateways])


async def until_redis_is_asked(session: aiohttp.ClientSession, house: House) -> None:
    """Have the server back, and the gateways' trust in it."""
    with contextlib.suppress(AssertionError):  # it is running
        house.redis.start()

    async def is_up() -> bool:
        for gateway in house.gateways:
            await post(session, gateway, {**bearer("prober"), "Idempotency-Key": "probe"}, type="LIMIT", price=1)
        return await total(session, house, "redis_up") == len(house.gateways)

    await until(is_up)


@pytest.mark.parametrize(
    ("way", "fault"), [("listed", "none"), *((way, fault) for fault in FAULTS for way in ("keyed", "asked"))]
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_thousand_equal_requests_are_one_order(house: House, way: str, fault: str) -> None:
    headers = bearer(f"{way}-{fault}")
    asking = {"keyed": {"Idempotency-Key": "once"}, "asked": {"Idempotency-Derive": "true"}, "listed": {}}[way]
    connector = aiohttp.TCPConnector(limit=AT_ONCE)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        await until_redis_is_asked(session, house)
        before = await total(session, house, "idempotency_duplicate_orders_prevented_total")
        placed = await total(session, house, "orders_placed_total")
        wrong = await total(session, house, "idempotency_cache_errors_total{wrong_entry}")

        posts = [asyncio.ensure_future(post(session, house.gateways[n % 2], asking, **ORDER)) for n in range(REQUESTS)]
        await until(lambda: sum(one.done() for one in posts) >= REQUESTS // 3)
        mischief = asyncio.ensure_future(MISCHIEF[fault](house.redis)) if fault in MISCHIEF else None
        answers = await asyncio.gather(*posts)

        async def is_lied_to() -> bool:
            answers.append(await post(session, house.gateways[0], asking, **ORDER))
            return await total(session, house, "idempotency_cache_errors_total{wrong_entry}") > wrong

        if fault == "lying":
            await until(is_lied_to)  # else the test would show nothing
        if mischief is not None:
            mischief.cancel()
            await asyncio.wait({mischief})

        assert len({answer["orderId"] for answer in answers}) == 1
        for gateway in house.gateways:
            assert await count_orders(session, gateway, headers) == 1
        assert await total(session, house, "orders_placed_total") == placed + 1
        prevented = await total(session, house, "idempotency_duplicate_orders_prevented_total") - before
        assert prevented == len(answers) - 1
