"""One account's orders hang at a real broker: the orders of another account go through it all the same."""

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.hop_proxy import HopProxy, hop_proxy
from tests.support.orders import PATIENT, Snapshot
from tests.support.polling import until
from tests.support.process import Process

# More than three times the slots of a worker.
COUNT = 400
HANGING = {"symbol": "EURUSD", "side": "BUY", "type": "LIMIT", "price": 100, "timeInForce": "GTC", "qty": 1000}


async def post(session: aiohttp.ClientSession, process: Process, account: str, body: Snapshot) -> str:
    """Place an order of the account, which must be accepted; returns its id."""
    headers = process.headers(account)
    async with session.post(f"{process.url}/orders", json=dict(body), headers=headers) as response:
        assert response.status == 202, await response.text()
        return str((await response.json())["orderId"])


async def status(session: aiohttp.ClientSession, process: Process, account: str, order_id: str) -> str:
    async with session.get(f"{process.url}/orders/{order_id}", headers=process.headers(account)) as response:
        return str((await response.json())["status"])


async def is_filled(session: aiohttp.ClientSession, process: Process, order_id: str) -> bool:
    found = await status(session, process, "other", order_id)
    assert found not in ("REJECTED", "EXPIRED"), process.log
    return found == "FILLED"


async def breaker(session: aiohttp.ClientSession, process: Process) -> dict[str, Any]:
    async with session.get(f"{process.url}/venues", headers=process.headers("other")) as response:
        [venue] = (await response.json())["venues"]
        return dict(venue)


def hung(proxy: HopProxy) -> int:
    """How many of the orders that hang were sent so far."""
    return sum(b'"EURUSD"' in request for request in proxy.requests if request.startswith(b"POST /orders"))


@pytest.mark.parametrize("others", ["trade", "come_later"])
async def test_orders_of_one_account_that_hang_do_not_keep_the_venue_closed_for_another(
    cluster: Cluster, session: aiohttp.ClientSession, others: str
) -> None:
    broker = await cluster.broker(dedupe="open_only").start()
    async with hop_proxy(broker.port) as proxy:
        proxy.hold(b"POST /orders", containing=b'"EURUSD"')
        process = await cluster.process(**broker.client_settings(VENUE_URL_SIM=proxy.url)).start()
        for _ in range(COUNT // 40):
            await asyncio.gather(*(post(session, process, "hanging", HANGING) for _ in range(40)))

        async def place_and_wait() -> None:
            order_id = await post(session, process, "other", PATIENT)
            await until(lambda: is_filled(session, process, order_id), lambda: process.log)

        if others == "trade":
            # One order after the other, until the first orders have timed out and some more were tried.
            while hung(proxy) <= 120 + 1:
                await place_and_wait()
            assert (await breaker(session, process))["breaker"] == "closed", process.log
            assert "venue_breaker_opened" not in process.log
        else:
            await until(lambda: "venue_breaker_opened" in process.log)
            for _ in range(3):
                await place_and_wait()
            assert (await breaker(session, process))["breaker"] == "closed", process.log
        await place_and_wait()
        assert hung(proxy) < 140, "an account whose orders keep failing sends one at a time"
        broker.check_nothing_twice()
