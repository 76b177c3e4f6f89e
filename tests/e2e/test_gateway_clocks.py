"""Gateways whose clocks are wrong: one minute, one order, and nothing expires or is forgotten by their time."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from tests.support.postgres import PostgresServer
from tests.support.posts import bearer, count_orders, post
from tests.support.process import Process, run_command, until
from tests.support.skewed import SkewedProcess

DERIVE = {"Idempotency-Derive": "true"}
HOUR = timedelta(hours=1)
WINDOW_SECONDS = 6

Start = Callable[..., Awaitable[list[SkewedProcess]]]


@pytest.fixture
def database_url(postgres_server: PostgresServer) -> str:
    url = postgres_server.create_database()
    assert run_command("db", "upgrade", SWITCHYARD_DATABASE_URL=url).returncode == 0
    return url


@pytest.fixture
async def start(database_url: str, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts gateways on one database, each ahead of the machine's clock by so much."""
    started: list[SkewedProcess] = []

    async def start(*ahead: timedelta, **settings: str) -> list[SkewedProcess]:
        settings["SWITCHYARD_DATABASE_URL"] = database_url
        made = [
            SkewedProcess(tmp_path / str(len(started) + n), "gateway", one, **settings) for n, one in enumerate(ahead)
        ]
        started.extend(made)
        await asyncio.gather(*(process.start() for process in made))
        return made

    yield start
    for process in started:
        process.close()


async def test_a_retry_after_the_minute_boundary_finds_the_first_order_on_a_gateway_20_seconds_ahead(
    start: Start,
) -> None:
    # By its own clock the first gateway is 10 s before the end of a minute, and the other 10 s into the next.
    into_minute = timedelta(seconds=time.time() % 60)
    late, early = await start(timedelta(seconds=50) - into_minute, timedelta(seconds=70) - into_minute)
    headers = {**bearer("demo"), **DERIVE}
    async with aiohttp.ClientSession() as session:
        first = await post(session, late, headers)
        retry = await post(session, early, headers)
        back = await post(session, late, headers)
        assert first["orderId"] == retry["orderId"] == back["orderId"]
        assert retry["originalRequestId"] == first["requestId"]
        assert await count_orders(session, late, headers) == 1


async def test_a_retry_over_a_boundary_of_windows_by_every_clock_finds_the_first_order(start: Start) -> None:
    settings = {"IDEMPOTENCY_KEY_GENERATION_TIMESTAMP_RESOLUTION": str(WINDOW_SECONDS * 1000)}
    gateways = await start(timedelta(0), timedelta(seconds=20), **settings)
    headers = {**bearer("demo"), **DERIVE}
    async with aiohttp.ClientSession() as session:
        begun, window = 0.0, 0

        async def placed_at_the_end_of_a_window() -> dict[str, Any]:
            nonlocal begun, window
            await until(lambda: time.time() % WINDOW_SECONDS > WINDOW_SECONDS - 0.5)
            begun, window = time.monotonic(), int(time.time() // WINDOW_SECONDS)
            return await post(session, gateways[0], headers)

        first = await placed_at_the_end_of_a_window()
        await until(lambda: int(time.time() // WINDOW_SECONDS) > window)
        retry = await post(session, gateways[1], headers)
        assert retry["orderId"] == first["orderId"] or time.monotonic() - begun >= WINDOW_SECONDS


@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_a_step_of_one_gateways_clock_neither_forgets_a_key_nor_makes_a_second_order(
    start: Start, database_url: str, step: timedelta
) -> None:
    settings = {"IDEMPOTENCY_TTL_SEC": "1800", "IDEMPOTENCY_CACHE_TTL": "1800000"}
    stepped, steady = await start(timedelta(0), timedelta(0), **settings)
    headers = bearer("demo")
    keyed, derived = {**headers, "Idempotency-Key": "once"}, {**headers, **DERIVE}
    async with aiohttp.ClientSession() as session:
        before = [await post(session, steady, asking) for asking in (keyed, derived)]
        for one in before:  # only the key of an order that has ended can expire
            async with session.post(f"{steady.url}/orders/{one['orderId']}/cancel", headers=headers) as response:
                assert response.status == 202
        stepped.step(step)
        after = [await post(session, gateway, asking) for gateway in (stepped, steady) for asking in (keyed, derived)]
        assert [one["orderId"] for one in after] == [one["orderId"] for one in before] * 2
        # What the stepped gateway takes, the other recognises, and the other way round.
        fresh = await post(session, stepped, {**headers, "Idempotency-Key": "fresh"})
        again = [await post(session, gateway, {**headers, "Idempotency-Key": "fresh"}) for gateway in (steady, stepped)]
        assert {one["orderId"] for one in again} == {fresh["orderId"]}
        assert await count_orders(session, steady, headers) == 3
        accepted_at = await newest_accepted_at(database_url)
        assert abs(datetime.now(UTC) - accepted_at) < HOUR / 2, "a worker would send it at the wrong time"


async def test_a_gateway_whose_clock_is_ahead_takes_no_key_away_that_is_needed(
    start: Start, database_url: str, tmp_path: Path
) -> None:
    # The caretaker looks as soon as its gateway starts; by that gateway's clock every key has expired.
    [steady] = await start(timedelta(0))
    worker = await Process(tmp_path / "worker", "worker", SWITCHYARD_DATABASE_URL=database_url).start()
    headers = {**bearer("demo"), **DERIVE}
    try:
        async with aiohttp.ClientSession() as session:
            first = await post(session, steady, headers, type="LIMIT", price=1000)

            async def is_filled() -> bool:
                async with session.get(f"{steady.url}/orders/{first['orderId']}", headers=headers) as response:
                    return bool((await response.json())["status"] == "FILLED")

            await until(is_filled)
            [ahead] = await start(timedelta(hours=30))
            again = [await post(session, gateway, headers, type="LIMIT", price=1000) for gateway in (ahead, steady)]
            assert {one["orderId"] for one in again} == {first["orderId"]}
    finally:
        worker.close()


async def newest_accepted_at(database_url: str) -> datetime:
    connection = await asyncpg.connect(database_url)
    try:
        found: datetime = await connection.fetchval("SELECT accepted_at FROM orders ORDER BY accepted_at DESC LIMIT 1")
        return found
    finally:
        await connection.close()
