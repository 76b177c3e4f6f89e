"""Two gateways on one PostgreSQL database and one Redis: one request per key, one rate per client, one registry."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from switchyard.adapters.files.signing_keys import KEY_SET_FILE, local_key
from switchyard.adapters.pdca.store import SqlPdcaStore
from switchyard.adapters.postgres.database import PostgresDatabase
from tests.support.pdca import RECHECK, STRATEGY, add_strategies, local_token
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.process import Process
from tests.support.redis import RedisServer

LIMIT = 100_000


@pytest.fixture
async def gateways(
    tmp_path: Path, postgres_server: PostgresServer, redis_server: RedisServer
) -> AsyncIterator[tuple[Process, Process]]:
    redis_server.flush()
    url = postgres_server.create_database()
    await PostgresDatabase.upgrade(url)
    keys = tmp_path / "issuer"
    keys.mkdir()
    await asyncio.to_thread(local_key, keys)
    shared = {
        "SWITCHYARD_DATABASE_URL": url,
        "SWITCHYARD_REDIS_URL": redis_server.url,
        "PDCA_JWKS_FILE": str(keys / KEY_SET_FILE),
        "PDCA_RECHECK_RATE_PER_MIN": str(LIMIT),
    }
    first, second = (Process(tmp_path / name, "gateway", **shared) for name in ("first", "second"))
    await asyncio.gather(first.start(), second.start())
    store = await SqlPdcaStore.on_postgres(url)
    await add_strategies(store, STRATEGY)
    await store.close()
    yield first, second
    first.close()
    second.close()


async def test_one_key_is_one_request_and_one_client_has_one_rate(
    gateways: tuple[Process, Process], tmp_path: Path
) -> None:
    headers = {"Authorization": f"Bearer {local_token(tmp_path / 'issuer')}"}
    asked = [0, 0]

    async def recheck(number: int) -> tuple[Any, int]:
        """The answer of one of the gateways, and what is left of the rate."""
        asked[number] += 1
        sent = {**headers, "Idempotency-Key": "key"}
        async with session.post(f"{gateways[number].url}/pdca/recheck", json=RECHECK, headers=sent) as response:
            assert response.status == 202
            return await response.json(), int(response.headers["X-RateLimit-Remaining"])

    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(*[recheck(number % 2) for number in range(40)])
        assert len({body["request_id"] for body, _ in answers}) == 1

        async def is_shared() -> bool:
            """Whether the second gateway counts requests of the first; alone it counts only while Redis is slow."""
            _, remaining = await recheck(1)
            return remaining < LIMIT - asked[1]

        await until(is_shared)

        placed = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000, "strategy": "carry.v1"}
        async with session.post(f"{gateways[0].url}/orders", json=placed, headers=gateways[0].headers()) as response:
            assert response.status == 202

        async def is_registered() -> bool:
            async with session.get(f"{gateways[1].url}/gui/strategies/carry.v1", headers=headers) as response:
                return response.status == 200

        await until(is_registered)
