"""A worker whose clock is wrong or is set while it runs: orders are sent in time, and none counts as late."""

from datetime import timedelta

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.orders import MARKET, place, until_all_final
from tests.support.skewed import SkewedProcess

ORDERS = 20


@pytest.mark.parametrize("hours", [1, -1])
async def test_orders_that_cannot_wait_are_sent_at_any_setting_of_the_workers_clock(
    hours: int, cluster: Cluster, database_url: str, session: aiohttp.ClientSession
) -> None:
    settings = {"SWITCHYARD_DATABASE_URL": database_url}
    gateway = await cluster.process("gateway", "gateway", **settings).start()
    worker = cluster.add(SkewedProcess(cluster.folder / "worker", "worker", timedelta(hours=hours), **settings))
    await worker.start()
    for number in range(ORDERS):
        if number == ORDERS // 2:
            worker.step(timedelta(hours=-hours))
        await place(session, gateway, f"key-{number}", MARKET)
    orders = await until_all_final(session, gateway)
    assert [order["status"] for order in orders] == ["FILLED"] * ORDERS
