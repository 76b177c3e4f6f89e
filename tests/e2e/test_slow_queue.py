"""With nobody sending, orders that cannot wait are refused instead of accepted to expire; the others are taken."""

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import aiohttp
import pytest

from tests.support.process import Process, until

MARKET = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000}
RESTING = {**MARKET, "type": "LIMIT", "price": 100, "timeInForce": "GTC"}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Process]:
    process = await Process(tmp_path, "up", SWITCHYARD_WORKER="false").start()
    yield process
    process.close()


async def test_a_queue_that_stands_still_takes_only_orders_that_may_wait(gateway: Process) -> None:
    async with aiohttp.ClientSession() as session:

        async def post(body: dict[str, object], key: str) -> tuple[int, dict[str, str]]:
            headers = gateway.headers(key=key)
            async with session.post(f"{gateway.url}/orders", json=body, headers=headers) as response:
                return response.status, await response.json()

        status, first = await post(MARKET, "first")
        assert status == 202

        keys = (f"late-{number}" for number in count())

        async def is_refused() -> bool:
            status, answer = await post(MARKET, next(keys))
            return (status, answer.get("reason")) == (503, "QUEUE_DELAY")

        await until(is_refused)
        assert await post(MARKET, "first") == (202, first), "what was taken is still known by its key"
        assert (await post(RESTING, "patient"))[0] == 202
