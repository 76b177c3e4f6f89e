"""More requests than a process can send: accepted orders are sent, durable work is accepted, repeats are answered."""

import asyncio
from collections import Counter
from statistics import median
from typing import Any

import aiohttp
import pytest

from switchyard.flow.routing.window import SHARE
from tests.support.cluster import Cluster
from tests.support.figures import scrape
from tests.support.orders import FINAL, MARKET, PATIENT, cancel, place, until_all
from tests.support.ports import free_port
from tests.support.process import Process

# More than the window holds, so that most of them wait.
CONNECTIONS = 192
ORDERS = 3 * CONNECTIONS


class Clients:
    """Post orders on many connections, each without a pause."""

    def __init__(self, session: aiohttp.ClientSession, gateway: Process) -> None:
        self.session = session
        self.gateway = gateway
        self.answers: Counter[tuple[int, str]] = Counter()

    async def post(self, body: dict[str, Any], key: str, account: str = "demo") -> tuple[int, dict[str, Any]]:
        headers = self.gateway.headers(account, key)
        async with self.session.post(f"{self.gateway.url}/orders", json=body, headers=headers) as response:
            answer: dict[str, Any] = await response.json()
        if response.status == 503:
            assert response.headers["Retry-After"] == "1"
        self.answers[response.status, answer.get("reason", "")] += 1
        return response.status, answer

    async def post_many(self, body: dict[str, Any], count: int, label: str) -> None:
        numbers = iter(range(count))

        async def client() -> None:
            for number in numbers:
                await self.post(body, f"{label}-{number}")

        await asyncio.gather(*(client() for _ in range(CONNECTIONS)))


@pytest.fixture
async def many() -> Any:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


async def test_orders_wait_for_those_before_them_instead_of_expiring(
    cluster: Cluster, many: aiohttp.ClientSession
) -> None:
    gateway = await cluster.process().start()
    clients = Clients(many, gateway)
    first = await place(many, gateway, "first", MARKET)
    flood = asyncio.create_task(clients.post_many(MARKET, ORDERS, "flood"))
    while not flood.done():
        assert await place(many, gateway, "first", MARKET) == first, "a repeat is not answered while new orders wait"
        await asyncio.sleep(0.05)
    await flood
    # A machine that sends fewer orders per second than there are connections may reject some, but accepts no order
    # only to let it expire.
    assert set(clients.answers) <= {(202, ""), (503, "QUEUE_DELAY")}
    orders = await until_all(many, gateway, lambda order: order["status"] in FINAL)
    assert {order["status"] for order in orders} == {"FILLED"}
    assert len(orders) == clients.answers[202, ""] + 1
    figures = await scrape(many, gateway.url)
    assert figures["admission_rejects_total"] == clients.answers[503, "QUEUE_DELAY"]
    assert figures["admission_window_orders"] == figures["admission_waiting_requests"] == 0


async def test_an_account_that_floods_lets_the_orders_of_another_pass(
    cluster: Cluster, many: aiohttp.ClientSession
) -> None:
    """Counted in orders, not in time: how many of the flood are answered while one order of the other account is."""
    gateway = await cluster.process().start()
    flooding, other = Clients(many, gateway), Clients(many, gateway)
    flood = asyncio.create_task(flooding.post_many(MARKET, 4 * ORDERS, "flood"))
    await other.post(MARKET, "first", "other")
    passed_by = []
    while not flood.done():
        before = flooding.answers.total()
        await other.post(MARKET, f"other-{before}", "other")
        passed_by.append(flooding.answers.total() - before)
    await flood
    assert set(other.answers) == {(202, "")}
    # Those that were answered and not read yet, those in the commit under way, and those in the commit of the order.
    assert median(passed_by) <= 3 * SHARE, passed_by


async def test_a_backlog_is_sent_before_orders_that_cannot_wait_are_accepted(
    cluster: Cluster, many: aiohttp.ClientSession
) -> None:
    gateway = cluster.process(SWITCHYARD_WORKER="false")
    await gateway.start()
    await Clients(many, gateway).post_many(PATIENT, ORDERS, "backlog")
    gateway.stop()
    worker = await cluster.process(SWITCHYARD_WORKER="true").start()
    clients = Clients(many, worker)
    await clients.post_many(MARKET, ORDERS, "urgent")
    orders = await until_all(many, worker, lambda order: order["status"] in FINAL)
    assert {order["status"] for order in orders} == {"FILLED"}
    assert len(orders) == ORDERS + clients.answers[202, ""]


async def test_a_venue_that_is_down_or_slow_rejects_no_order_that_can_wait(
    cluster: Cluster, many: aiohttp.ClientSession
) -> None:
    broker = await cluster.broker().start()
    settings = broker.client_settings()
    down = await cluster.process(
        name="down", **{**settings, "VENUE_URL_SIM": f"http://127.0.0.1:{free_port()}"}
    ).start()
    slow = await cluster.process(name="slow", **settings).start()
    await broker.set_faults(slow_bytes=3600)
    for gateway in (down, slow):
        clients = Clients(many, gateway)
        await clients.post_many(PATIENT, ORDERS, "patient")
        assert clients.answers == {(202, ""): ORDERS}
        await cancel(many, gateway, await place(many, gateway))
