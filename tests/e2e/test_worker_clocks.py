"""A worker whose own clock is off, or is set while it runs: orders leave in time, and none is taken for late."""

from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest

from tests.support.load import all_final
from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_command
from tests.support.skewed import SkewedProcess

MARKET = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000}
ORDERS = 20


@pytest.mark.parametrize("hours", [1, -1])
async def test_orders_that_cannot_wait_are_sent_whatever_the_workers_clock_says(
    hours: int, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    settings = {"SWITCHYARD_DATABASE_URL": postgres_server.create_database()}
    assert run_command("db", "upgrade", **settings).returncode == 0
    gateway = Process(tmp_path / "gateway", "gateway", **settings)
    worker = SkewedProcess(tmp_path / "worker", "worker", timedelta(hours=hours), **settings)
    try:
        await gateway.start()
        await worker.start()
        async with aiohttp.ClientSession() as session:
            for number in range(ORDERS):
                if number == ORDERS // 2:
                    worker.step(timedelta(hours=-hours))
                headers = gateway.headers(key=f"key-{number}")
                async with session.post(f"{gateway.url}/orders", json=MARKET, headers=headers) as response:
                    assert response.status == 202, await response.text()
            orders = await all_final(session, gateway)
    finally:
        worker.close()
        gateway.close()
    assert [order["status"] for order in orders] == ["FILLED"] * ORDERS
