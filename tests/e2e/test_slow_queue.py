"""With nobody sending, orders that cannot wait are rejected instead of accepted to expire; the others are taken."""

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import aiohttp
import pytest

from tests.support.ports import free_port
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

        async def is_rejected() -> bool:
            status, answer = await post(MARKET, next(keys))
            return (status, answer.get("reason")) == (503, "QUEUE_DELAY")

        await until(is_rejected)
        assert await post(MARKET, "first") == (202, first), "what was taken is still known by its key"
        assert (await post(RESTING, "patient"))[0] == 202


async def test_an_order_that_cannot_wait_ends_though_its_venue_was_never_reached(tmp_path: Path) -> None:
    process = Process(tmp_path, "up", VENUE_URL_SIM=f"http://127.0.0.1:{free_port()}")
    try:
        await process.start()
        async with aiohttp.ClientSession() as session:
            for body in (MARKET, RESTING):
                async with session.post(f"{process.url}/orders", json=body, headers=process.headers()) as response:
                    assert response.status == 202

            async def ends() -> list[tuple[str, str | None]]:
                async with session.get(f"{process.url}/orders", headers=process.headers()) as response:
                    return [(order["status"], order["reason"]) for order in (await response.json())["orders"]]

            async def has_ended() -> bool:
                return await ends() == [("ACCEPTED", None), ("EXPIRED", "BROKER_DOWN")]

            await until(has_ended)
    finally:
        process.close()
