"""What Redis is good for, and what it may never say: repeats answered without SQL, and none of a lost past."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.figures import scrape
from tests.support.postgres import PostgresServer
from tests.support.posts import BODY, bearer, post
from tests.support.process import Process, run_command, until
from tests.support.redis import RedisServer

KEYED = {**bearer("demo"), "Idempotency-Key": "once"}
DERIVED = {**bearer("demo"), "Idempotency-Derive": "true"}


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    """A server of its own: this one is stopped."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
async def gateways(
    database: PostgresServer, redis_server: RedisServer, tmp_path: Path
) -> AsyncIterator[tuple[Process, Process]]:
    redis_server.flush()
    settings = {"SWITCHYARD_DATABASE_URL": database.create_database(), "SWITCHYARD_REDIS_URL": redis_server.url}
    assert run_command("db", "upgrade", **settings).returncode == 0
    one, two = (Process(tmp_path / f"gateway-{n}", "gateway", **settings) for n in range(2))
    await asyncio.gather(one.start(), two.start())
    yield one, two
    one.close()
    two.close()


async def cancel(session: aiohttp.ClientSession, gateway: Process, order_id: str) -> None:
    async with session.post(f"{gateway.url}/orders/{order_id}/cancel", headers=bearer("demo")) as response:
        assert response.status == 202, await response.text()


async def until_cached(session: aiohttp.ClientSession, gateway: Process, headers: dict[str, str]) -> None:
    """Repeat until an answer comes from the cache: it is written behind the answers."""

    async def is_hit() -> bool:
        before = (await scrape(session, gateway.url))["idempotency_cache_hits_total"]
        await post(session, gateway, headers)
        return (await scrape(session, gateway.url))["idempotency_cache_hits_total"] > before

    await until(is_hit)


async def test_a_repeat_is_answered_by_another_gateway_while_the_database_is_away(
    gateways: tuple[Process, Process], database: PostgresServer
) -> None:
    one, two = gateways
    async with aiohttp.ClientSession() as session:
        keyed, derived = await post(session, one, KEYED), await post(session, one, DERIVED)
        await cancel(session, one, derived["orderId"])  # only an order that has ended is cached under a derived key
        await until_cached(session, one, KEYED)
        await until_cached(session, one, DERIVED)
        await asyncio.to_thread(database.stop)
        for _ in range(3):
            assert (await post(session, two, KEYED))["orderId"] == keyed["orderId"]
            again = await post(session, two, DERIVED)
            assert (again["orderId"], again["fromCache"]) == (derived["orderId"], True)
            assert (again["status"], again["originalRequestId"]) == ("duplicate_detected", derived["requestId"])
        # Another body under the same key is a matter for the key store, and so is a key that nobody has used.
        for headers, changes in ((KEYED, {"qty": 2}), ({**KEYED, "Idempotency-Key": "new"}, {})):
            async with session.post(f"{two.url}/orders", json={**BODY, **changes}, headers=headers) as response:
                assert response.status == 503


async def test_an_order_that_a_restored_database_has_lost_is_not_acknowledged_from_redis(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    redis_server.flush()
    process = Process(tmp_path, "up", SWITCHYARD_REDIS_URL=redis_server.url, SWITCHYARD_WORKER="false")
    lost: set[str] = set()
    try:
        await process.start()
        async with aiohttp.ClientSession() as session:
            await post(session, process, {**KEYED, "Idempotency-Key": "kept"})
        assert process.stop() == 0
        shutil.copytree(tmp_path / "var", tmp_path / "backup")
        # The same backup twice: both of its lives have the same epoch.
        for _ in range(2):
            await process.start()
            async with aiohttp.ClientSession() as session:
                placed = {(await post(session, process, headers))["orderId"] for headers in (KEYED, DERIVED)}
                assert not placed & lost, "what is lost was acknowledged"
                assert placed < await order_ids(session, process)
                for order_id in placed:
                    await cancel(session, process, order_id)
                await until_cached(session, process, KEYED)
                await until_cached(session, process, DERIVED)
            assert process.stop() == 0
            lost |= placed
            restore(tmp_path, process)
            assert redis_server.ask("KEYS", "switchyard:idem:*"), "what was cached is still there"
        await process.start()
        async with aiohttp.ClientSession() as session:
            placed = {(await post(session, process, headers))["orderId"] for headers in (KEYED, DERIVED)}
            assert not placed & lost, "what is lost was acknowledged"
    finally:
        process.close()


def restore(folder: Path, process: Process) -> None:
    for file in ("switchyard.db", "switchyard.db-wal", "switchyard.db-shm"):
        (folder / "var" / file).unlink(missing_ok=True)
        if (folder / "backup" / file).exists():
            shutil.copy(folder / "backup" / file, folder / "var" / file)
    settings = {name: value for name, value in process.settings.items() if name != "SWITCHYARD_PORT"}
    declared = json.loads(run_command("db", "restored", "--json", **settings).stdout)
    assert declared["epoch"] == 2


async def order_ids(session: aiohttp.ClientSession, gateway: Process) -> set[Any]:
    async with session.get(f"{gateway.url}/orders", headers=bearer("demo")) as response:
        return {order["orderId"] for order in (await response.json())["orders"]}
