"""Gateways and a worker in separate processes that share only PostgreSQL."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from tests.support.cluster import Cluster
from tests.support.orders import MARKET, all_orders, place, until_all
from tests.support.polling import until
from tests.support.process import Process, run_command


@pytest.fixture
async def gateways(database_url: str, cluster: Cluster) -> tuple[Process, Process]:
    settings = {"SWITCHYARD_DATABASE_URL": database_url}
    one, two = (cluster.process("gateway", f"gateway-{number}", **settings) for number in range(2))
    await asyncio.gather(one.start(), two.start())
    return one, two


@pytest.fixture
async def worker(database_url: str, cluster: Cluster) -> Process:
    return await cluster.process("worker", "worker", SWITCHYARD_DATABASE_URL=database_url).start()


async def post(session: aiohttp.ClientSession, gateway: Process, key: str, **changes: Any) -> tuple[int, bytes]:
    """Post an order that need not be accepted; returns status and body."""
    headers = gateway.headers(key=key)
    async with session.post(f"{gateway.url}/orders", json={**MARKET, **changes}, headers=headers) as response:
        return response.status, await response.read()


async def test_a_hundred_posts_with_one_key_over_two_gateways_are_one_order(
    gateways: tuple[Process, Process], session: aiohttp.ClientSession
) -> None:
    responses = await asyncio.gather(*(post(session, gateways[n % 2], "once") for n in range(100)))
    assert {status for status, _ in responses} == {202}
    assert len({body for _, body in responses}) == 1
    for gateway in gateways:
        assert len(await all_orders(session, gateway)) == 1


async def test_different_bodies_with_one_key_over_two_gateways_are_one_order_and_conflicts(
    gateways: tuple[Process, Process], session: aiohttp.ClientSession
) -> None:
    responses = await asyncio.gather(*(post(session, gateways[n % 2], "k", qty=1000 + n) for n in range(40)))
    assert Counter(status for status, _ in responses) == {202: 1, 409: 39}


async def test_an_order_accepted_by_one_gateway_is_sent_by_the_worker_and_streamed_by_the_other_gateway(
    gateways: tuple[Process, Process], worker: Process, session: aiohttp.ClientSession
) -> None:
    accepting, streaming = gateways
    statuses: list[str] = []

    async def follow() -> None:
        async with session.get(f"{streaming.url}/stream", headers=streaming.headers()) as response:
            async for line in response.content:
                if line.startswith(b"data: "):
                    statuses.append(json.loads(line[6:]).get("status", "ready"))

    following = asyncio.create_task(follow())
    await until(lambda: "ready" in statuses)
    await place(session, accepting, "one", MARKET)
    await until(lambda: "FILLED" in statuses)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert [status for status in statuses if status in ("ACCEPTED", "SENDING")] == ["ACCEPTED", "SENDING"]
    [order] = await all_orders(session, streaming)
    assert order["status"] == "FILLED"


async def test_orders_of_a_killed_worker_are_filled_by_the_next_one(
    gateways: tuple[Process, Process], worker: Process, session: aiohttp.ClientSession
) -> None:
    # Orders that may wait: others would expire while there is no worker.
    for number in range(60):
        await place(session, gateways[0], f"key-{number}")
        if number == 30:
            worker.kill()
    await worker.start()
    assert len(await until_all(session, gateways[0], lambda order: order["status"] == "FILLED")) == 60


def test_separate_processes_need_postgresql(tmp_path: Path) -> None:
    for role in ("gateway", "worker", "backoffice"):
        ended = run_command(role, SWITCHYARD_DATA_DIR=str(tmp_path))
        assert ended.returncode == 4
        assert "SWITCHYARD_DATABASE_URL" in ended.stderr
        assert "PostgreSQL" in ended.stderr
        assert "Traceback" not in ended.stderr


async def test_a_second_process_on_the_same_sqlite_file_does_not_start(cluster: Cluster) -> None:
    first = await cluster.process().start()
    second = run_command("up", SWITCHYARD_DATA_DIR=first.settings["SWITCHYARD_DATA_DIR"], SWITCHYARD_PORT="0")
    assert second.returncode == 4
    assert "another process" in second.stderr
    assert first.stop() == 0


async def test_a_process_does_not_start_on_a_newer_schema(tmp_path: Path, database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("INSERT INTO schema_version (number, name) VALUES (9999, 'future')")
    await connection.close()
    settings = {"SWITCHYARD_DATA_DIR": str(tmp_path), "SWITCHYARD_DATABASE_URL": database_url, "SWITCHYARD_PORT": "0"}
    ended = run_command("up", **settings)
    assert ended.returncode == 4
    assert "newer" in ended.stderr
