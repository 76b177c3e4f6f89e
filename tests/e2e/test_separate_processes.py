"""Gateways and a worker as processes of their own, sharing nothing but PostgreSQL."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_command, until

BODY = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000}


@pytest.fixture
async def gateways(postgres_server: PostgresServer, tmp_path: Path) -> AsyncIterator[tuple[Process, Process]]:
    url = postgres_server.create_database()
    assert run_command("db", "upgrade", SWITCHYARD_DATABASE_URL=url).returncode == 0
    started = [Process(tmp_path / f"gateway-{n}", "gateway", SWITCHYARD_DATABASE_URL=url) for n in range(2)]
    for process in started:
        await process.start()
    yield started[0], started[1]
    for process in started:
        process.close()


@pytest.fixture
async def worker(gateways: tuple[Process, Process], tmp_path: Path) -> AsyncIterator[Process]:
    url = gateways[0].settings["SWITCHYARD_DATABASE_URL"]
    process = await Process(tmp_path / "worker", "worker", SWITCHYARD_DATABASE_URL=url).start()
    yield process
    process.close()


async def post(session: aiohttp.ClientSession, gateway: Process, key: str, **changes: Any) -> tuple[int, bytes]:
    headers = gateway.headers(key=key)
    async with session.post(f"{gateway.url}/orders", json={**BODY, **changes}, headers=headers) as response:
        return response.status, await response.read()


async def get(session: aiohttp.ClientSession, gateway: Process, path: str) -> Any:
    async with session.get(gateway.url + path, headers=gateway.headers()) as response:
        assert response.status == 200
        return json.loads(await response.read())


async def test_a_hundred_posts_with_one_key_over_two_gateways_are_one_order(gateways: tuple[Process, Process]) -> None:
    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(*(post(session, gateways[n % 2], "once") for n in range(100)))
        assert {status for status, _ in answers} == {202}
        assert len({body for _, body in answers}) == 1
        for gateway in gateways:
            assert len((await get(session, gateway, "/orders"))["orders"]) == 1


async def test_two_bodies_with_one_key_over_two_gateways_are_one_order_and_conflicts(
    gateways: tuple[Process, Process],
) -> None:
    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(*(post(session, gateways[n % 2], "k", qty=1000 + n) for n in range(40)))
        assert Counter(status for status, _ in answers) == {202: 1, 409: 39}


async def test_what_one_gateway_accepts_a_worker_sends_and_the_other_gateway_streams(
    gateways: tuple[Process, Process], worker: Process
) -> None:
    accepting, streaming = gateways
    seen: list[str] = []
    async with aiohttp.ClientSession() as session:

        async def follow() -> None:
            async with session.get(f"{streaming.url}/stream", headers=streaming.headers()) as response:
                async for line in response.content:
                    if line.startswith(b"data: "):
                        seen.append(json.loads(line[6:]).get("status", "ready"))

        following = asyncio.create_task(follow())
        await until(lambda: "ready" in seen)
        await post(session, accepting, "one")
        await until(lambda: "FILLED" in seen)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert [status for status in seen if status in ("ACCEPTED", "SENDING")] == ["ACCEPTED", "SENDING"]
        assert (await get(session, streaming, "/orders"))["orders"][0]["status"] == "FILLED"


async def test_a_killed_worker_is_noticed_and_the_next_one_finishes(
    gateways: tuple[Process, Process], worker: Process
) -> None:
    accepting = gateways[0]
    async with aiohttp.ClientSession() as session:
        for number in range(60):
            # Orders that may wait: those that want to be filled at once expire while there is no worker.
            await post(session, accepting, f"key-{number}", type="LIMIT", price=1000)
            if number == 30:
                worker.kill()
        await worker.start()

        async def all_filled() -> bool:
            orders = (await get(session, accepting, "/orders?limit=500"))["orders"]
            return len(orders) == 60 and {order["status"] for order in orders} == {"FILLED"}

        await until(all_filled)


def test_separate_processes_need_postgresql(tmp_path: Path) -> None:
    for role in ("gateway", "worker"):
        ended = run_command(role, SWITCHYARD_DATA_DIR=str(tmp_path))
        assert ended.returncode == 4
        assert "SWITCHYARD_DATABASE_URL" in ended.stderr
        assert "PostgreSQL" in ended.stderr
        assert "Traceback" not in ended.stderr


async def test_a_second_process_on_the_same_sqlite_file_is_rejected(tmp_path: Path) -> None:
    first = await Process(tmp_path).start()
    try:
        second = run_command("up", SWITCHYARD_DATA_DIR=first.settings["SWITCHYARD_DATA_DIR"], SWITCHYARD_PORT="0")
        assert second.returncode == 4
        assert "another process" in second.stderr
    finally:
        assert first.stop() == 0


async def test_a_schema_that_is_too_new_stops_the_start(tmp_path: Path, postgres_server: PostgresServer) -> None:
    import asyncpg

    url = postgres_server.create_database()
    run_command("db", "upgrade", SWITCHYARD_DATABASE_URL=url)
    connection = await asyncpg.connect(url)
    await connection.execute("INSERT INTO schema_version (number, name) VALUES (9999, 'future')")
    await connection.close()
    ended = run_command("up", SWITCHYARD_DATA_DIR=str(tmp_path), SWITCHYARD_DATABASE_URL=url, SWITCHYARD_PORT="0")
    assert ended.returncode == 4
    assert "newer" in ended.stderr
