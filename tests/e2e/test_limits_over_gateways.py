"""Limits over several processes: gateways that share PostgreSQL, a broker of its own, kills and doubt."""

import asyncio
from collections import Counter
from decimal import Decimal
from subprocess import CompletedProcess
from typing import Any

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.orders import get, until_all
from tests.support.polling import until
from tests.support.process import Process, run_command
from tests.support.venue_process import VenueProcess

# Far below the market: it rests, and 1,000 of it reserve 100,000 JPY.
RESTING = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "price": 100, "timeInForce": "GTC", "qty": 1000}
ORDERS = 200


async def post(session: aiohttp.ClientSession, gateway: Process, **changes: Any) -> tuple[int, dict[str, Any]]:
    body = {**RESTING, **changes}
    async with session.post(f"{gateway.url}/orders", json=body, headers=gateway.headers()) as response:
        return response.status, await response.json()


async def money(session: aiohttp.ClientSession, gateway: Process) -> dict[str, Any]:
    """The sums of the account in its one currency; empty without orders and positions."""
    exposure = await get(session, gateway, "/risk/exposure")
    return {"openOrders": exposure["openOrders"], **(exposure["currencies"][0] if exposure["currencies"] else {})}


@pytest.mark.parametrize("size", [1000, 1700], ids=["the limit is a multiple", "the limit is between two orders"])
async def test_200_parallel_orders_over_two_gateways_never_exceed_the_open_notional(
    cluster: Cluster, database_url: str, session: aiohttp.ClientSession, size: int
) -> None:
    broker = await cluster.broker().start()
    limit = 2_500_000
    settings = broker.client_settings(SWITCHYARD_DATABASE_URL=database_url, RISK_MAX_OPEN_NOTIONAL=str(limit))
    one, two = (cluster.process("gateway", f"gateway-{number}", **settings) for number in range(2))
    worker = cluster.process("worker", "worker", **settings)
    await asyncio.gather(one.start(), two.start(), worker.start())

    answers = await asyncio.gather(*(post(session, (one, two)[number % 2], qty=size) for number in range(ORDERS)))

    fitting = limit // (size * 100)
    assert Counter(status for status, _ in answers) == {202: fitting, 422: ORDERS - fitting}
    assert {body["reason"] for status, body in answers if status == 422} == {"LIMIT_OPEN_NOTIONAL"}
    for gateway in (one, two):
        assert (await money(session, gateway))["openNotional"] == fitting * size * 100
    accepted = {body["orderId"] for status, body in answers if status == 202}
    await until(lambda: len(broker.events("order")) >= fitting, lambda: worker.log)
    assert set(broker.check_nothing_twice()) == accepted
    at_broker = sum(Decimal(str(line["order"]["qty"])) * 100 for line in broker.events("order"))
    assert at_broker == fitting * size * 100 <= limit


async def test_an_order_in_doubt_keeps_its_reservation_until_it_ends(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker: VenueProcess = await cluster.broker(dedupe="none").start()
    process = cluster.process(**broker.client_settings(RISK_MAX_OPEN_NOTIONAL="150000"))
    await process.start()
    await broker.set_faults(drop_answer=1.0)
    status, body = await post(session, process)
    assert status == 202
    await until_all(session, process, lambda order: order["status"] == "UNKNOWN")

    status, rejected = await post(session, process)
    assert (status, rejected["reason"]) == (422, "LIMIT_OPEN_NOTIONAL")
    process.kill()
    broker.kill()
    await process.start()

    status, rejected = await post(session, process)
    assert (status, rejected["reason"]) == (422, "LIMIT_OPEN_NOTIONAL")
    assert (await money(session, process))["openNotional"] == 100_000
    row = f"{body['orderId']}:new:1"
    decided = await asyncio.to_thread(resolve, process, row)
    assert decided.returncode == 0, decided.stderr
    assert await money(session, process) == {"openOrders": 0}
    assert (await post(session, process))[0] == 202


def resolve(process: Process, row: str) -> CompletedProcess[str]:
    return run_command(
        *("outbox", "resolve", row, "--as", "not-sent", "--by", "a test", "--reason", "the broker is gone"),
        **process.settings,
    )


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_partial_fills_and_a_kill_leave_exact_totals(
    cluster: Cluster, session: aiohttp.ClientSession, engine: str, request: pytest.FixtureRequest
) -> None:
    limits = {"RISK_MAX_OPEN_NOTIONAL": "400000", "RISK_MAX_POSITION": "5000"}
    if engine == "postgres":
        limits["SWITCHYARD_DATABASE_URL"] = request.getfixturevalue("postgres_server").create_database()
    broker = await cluster.broker(faults={"partial_fills": 4}).start()
    process = await cluster.process(**broker.client_settings(**limits)).start()
    # Above the market: filled in four parts.
    assert (await post(session, process, price=200))[0] == 202
    await until_all(session, process, lambda order: order["status"] == "FILLED")
    for _ in range(3):
        assert (await post(session, process))[0] == 202
    await until_all(session, process, lambda order: order["status"] in ("FILLED", "WORKING"))
    before = await get(session, process, "/risk/exposure")
    assert (before["openOrders"], before["currencies"][0]["openNotional"]) == (3, 300_000)
    [symbol] = before["symbols"]
    assert (symbol["position"], symbol["openBuyQty"]) == (1000, 3000)

    process.kill()
    await process.start()

    after = await get(session, process, "/risk/exposure")
    assert after | {"windowOrders": 0} == before | {"windowOrders": 0}
    assert (await post(session, process, qty=2000))[1]["reason"] == "LIMIT_OPEN_NOTIONAL"
    assert (await post(session, process, qty=1001, price=1))[1]["reason"] == "LIMIT_POSITION"
    assert (await post(session, process, qty=1000))[0] == 202
