"""While nothing is sent, orders that cannot wait are rejected with 503 and orders that may wait are accepted."""

from itertools import count
from typing import Any

import aiohttp

from tests.support.cluster import Cluster
from tests.support.orders import MARKET, all_orders, place
from tests.support.polling import until
from tests.support.ports import free_port

RESTING = {**MARKET, "type": "LIMIT", "price": 100, "timeInForce": "GTC"}


async def test_a_queue_without_a_worker_accepts_only_orders_that_may_wait(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    gateway = await cluster.process(SWITCHYARD_WORKER="false").start()

    async def post(body: dict[str, object], key: str) -> tuple[int, dict[str, Any]]:
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
    assert await post(MARKET, "first") == (202, first), "the key of an accepted order no longer returns it"
    assert (await post(RESTING, "patient"))[0] == 202


async def test_an_order_that_cannot_wait_expires_although_its_venue_was_never_reached(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    process = await cluster.process(VENUE_URL_SIM=f"http://127.0.0.1:{free_port()}").start()
    expiring = await place(session, process, body=MARKET)
    waiting = await place(session, process, body=RESTING)

    async def has_expired() -> bool:
        ends = {order["orderId"]: (order["status"], order["reason"]) for order in await all_orders(session, process)}
        return ends == {expiring: ("EXPIRED", "BROKER_DOWN"), waiting: ("ACCEPTED", None)}

    await until(has_expired)
