"""Gateways with wrong clocks: a repeat within the window finds its order, and no key expires by their clocks."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import aiohttp
import asyncpg
import pytest

from tests.support.cluster import Cluster
from tests.support.orders import cancel, until_all_final
from tests.support.polling import until
from tests.support.posts import bearer, count_orders, post
from tests.support.skewed import SkewedProcess

DERIVE = {"Idempotency-Derive": "true"}
HOUR = timedelta(hours=1)
WINDOW_SECONDS = 6

Start = Callable[..., Awaitable[list[SkewedProcess]]]


@pytest.fixture
def start(database_url: str, cluster: Cluster) -> Start:
    """Starts gateways on one database, each ahead of the machine's clock by the given time."""
    folders = (cluster.folder / f"gateway-{number}" for number in range(10))

    async def start(*ahead: timedelta, **settings: str) -> list[SkewedProcess]:
        settings["SWITCHYARD_DATABASE_URL"] = database_url
        gateways = [cluster.add(SkewedProcess(next(folders), "gateway", each, **settings)) for each in ahead]
        return await asyncio.gather(*(gateway.start() for gateway in gateways))

    return start


async def test_a_repeat_after_the_minute_boundary_finds_the_first_order_on_a_gateway_20_seconds_ahead(
    start: Start, session: aiohttp.ClientSession
) -> None:
    # By its own clock the first gateway is 10 s before the end of a minute, and the second 10 s into the next.
    into_minute = timedelta(seconds=time.time() % 60)
    late, early = await start(timedelta(seconds=50) - into_minute, timedelta(seconds=70) - into_minute)
    headers = {**bearer("demo"), **DERIVE}
    first = await post(session, late, headers)
    repeat = await post(session, early, headers)
    third = await post(session, late, headers)
    assert first["orderId"] == repeat["orderId"] == third["orderId"]
    assert repeat["originalRequestId"] == first["requestId"]
    assert await count_orders(session, late, headers) == 1


async def test_a_repeat_after_the_end_of_a_window_by_every_clock_finds_the_first_order(
    start: Start, session: aiohttp.ClientSession
) -> None:
    settings = {"IDEMPOTENCY_KEY_GENERATION_TIMESTAMP_RESOLUTION": str(WINDOW_SECONDS * 1000)}
    gateways = await start(timedelta(0), timedelta(seconds=20), **settings)
    headers = {**bearer("demo"), **DERIVE}
    await until(lambda: time.time() % WINDOW_SECONDS > WINDOW_SECONDS - 0.5)
    begun, window = time.monotonic(), int(time.time() // WINDOW_SECONDS)
    first = await post(session, gateways[0], headers)
    await until(lambda: int(time.time() // WINDOW_SECONDS) > window)
    repeat = await post(session, gateways[1], headers)
    # On a machine so busy that the repeat comes after the window, a new order is correct.
    assert repeat["orderId"] == first["orderId"] or time.monotonic() - begun >= WINDOW_SECONDS


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_a_step_of_one_clock_neither_expires_a_key_nor_creates_a_second_order(
    start: Start, session: aiohttp.ClientSession, database_url: str, step: timedelta
) -> None:
    settings = {"IDEMPOTENCY_TTL_SEC": "1800", "IDEMPOTENCY_CACHE_TTL": "1800000"}
    stepped, steady = await start(timedelta(0), timedelta(0), **settings)
    headers = bearer("demo")
    keyed, derived = {**headers, "Idempotency-Key": "once"}, {**headers, **DERIVE}
    fresh = {**headers, "Idempotency-Key": "fresh"}
    before = [await post(session, steady, each) for each in (keyed, derived)]
    for placed in before:  # only the key of an order that has ended can expire
        await cancel(session, steady, placed["orderId"])
    stepped.step(step)
    after = [await post(session, gateway, each) for gateway in (stepped, steady) for each in (keyed, derived)]
    assert [placed["orderId"] for placed in after] == [placed["orderId"] for placed in before] * 2
    # Each gateway recognises an order that was accepted by the stepped one.
    first = await post(session, stepped, fresh)
    repeats = [await post(session, gateway, fresh) for gateway in (steady, stepped)]
    assert {placed["orderId"] for placed in repeats} == {first["orderId"]}
    assert await count_orders(session, steady, headers) == 3
    accepted_at = await newest_accepted_at(database_url)
    assert abs(datetime.now(UTC) - accepted_at) < HOUR / 2, "a worker would send it at the wrong time"


async def test_a_gateway_with_a_clock_ahead_removes_no_key_that_is_still_valid(
    start: Start, session: aiohttp.ClientSession, cluster: Cluster, database_url: str
) -> None:
    [steady] = await start(timedelta(0))
    await cluster.process("worker", "worker", SWITCHYARD_DATABASE_URL=database_url).start()
    headers = {**bearer("demo"), **DERIVE}
    first = await post(session, steady, headers, type="LIMIT", price=1000)
    await until_all_final(session, steady)
    # The reaper runs as soon as its gateway starts; by that gateway's clock every key has expired.
    [ahead] = await start(timedelta(hours=30))
    repeats = [await post(session, gateway, headers, type="LIMIT", price=1000) for gateway in (ahead, steady)]
    assert {placed["orderId"] for placed in repeats} == {first["orderId"]}


async def newest_accepted_at(database_url: str) -> datetime:
    connection = await asyncpg.connect(database_url)
    try:
        at: datetime = await connection.fetchval("SELECT accepted_at FROM orders ORDER BY accepted_at DESC LIMIT 1")
        return at
    finally:
        await connection.close()
