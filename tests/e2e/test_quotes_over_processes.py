"""Quotes in gateways that run apart from the worker, and from a broker that fails in many ways."""

from decimal import Decimal
from typing import Any

import aiohttp
import pytest

from tests.support import do_order
from tests.support.cluster import Cluster
from tests.support.contract import Contract, decoded
from tests.support.orders import MARKET, place
from tests.support.polling import until
from tests.support.process import Process
from tests.support.venue_process import VenueProcess

# A broker is asked often and its quotes count briefly, so that each fault shows soon.
QUICK = {"VENUE_QUOTES_POLL_SEC_SIM": "0.2", "SWITCHYARD_QUOTE_AGE_MAX_SEC": "2"}
NARROW: dict[str, Any] = {"risk_constraints": {"max_spread": 0.01}}


async def quote(session: aiohttp.ClientSession, gateway: Process, symbol: str = "USDJPY") -> tuple[int, Any]:
    """Return the answer of `GET /quotes/{symbol}`, checked against the contract."""
    async with session.get(f"{gateway.url}/quotes/{symbol}", headers=gateway.headers()) as response:
        body = await response.read()
        Contract().check("GET", f"/quotes/{symbol}", response.status, response.headers, body)
        return response.status, decoded(body)


async def accepted_data(session: aiohttp.ClientSession, gateway: Process, order_id: str) -> Any:
    path = f"{gateway.url}/orders/{order_id}/events"
    async with session.get(path, headers=gateway.headers()) as response:
        return decoded(await response.read())["events"][0]["data"]


async def until_status(session: aiohttp.ClientSession, gateway: Process, status: int) -> None:
    async def is_reached() -> bool:
        return (await quote(session, gateway))[0] == status

    await until(is_reached, lambda: gateway.log, pause_seconds=0.05)


async def test_gateways_beside_a_worker_know_the_market_of_the_paper_exchange(
    database_url: str, cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    settings = {"SWITCHYARD_DATABASE_URL": database_url}
    one, two = [await cluster.process("gateway", name, **settings).start() for name in ("one", "two")]
    await cluster.process("worker", "worker", **settings).start()

    seen: dict[str, set[tuple[Decimal, Decimal]]] = {}

    async def both_saw_a_step() -> bool:
        for gateway in (one, two):
            status, shown = await quote(session, gateway)
            assert status == 200
            seen.setdefault(shown["at"], set()).add((shown["bid"], shown["ask"]))
            steps[gateway.url].add(shown["at"])
        return bool(steps[one.url] & steps[two.url])

    steps: dict[str, set[str]] = {one.url: set(), two.url: set()}
    await until(both_saw_a_step)
    assert all(len(markets) == 1 for markets in seen.values())  # one time, one market, whoever is asked

    answer = await do_order.post(one, "narrow", **NARROW)
    assert (answer.status, answer.json["status"]) == (201, "filled")
    order_id = await place(session, two, "arrival", MARKET)
    arrival = (await accepted_data(session, two, order_id))["quote"]
    assert 0 < arrival["bid"] < arrival["ask"]
    # The worker's exchange filled at the market that the gateway saw: a step moves it by far less than this.
    assert abs(Decimal(str(answer.json["fills"][0]["price"])) / arrival["ask"] - 1) < Decimal("0.01")
    assert do_order.error(await do_order.post(two, "none", risk_constraints={"max_spread": 0}))[0] == 422


@pytest.fixture
async def broker(cluster: Cluster) -> VenueProcess:
    """A broker whose clock is an hour ahead: no age may depend on ours."""
    return await cluster.broker("--clock-offset", "3600").start()


@pytest.fixture
async def gateway(database_url: str, cluster: Cluster, broker: VenueProcess) -> Process:
    """A gateway beside a worker, both with the broker as their venue."""
    settings = broker.client_settings(SWITCHYARD_DATABASE_URL=database_url, **QUICK)
    gateway = await cluster.process("gateway", "gateway", **settings).start()
    await cluster.process("worker", "worker", **settings).start()
    return gateway


async def test_an_order_for_a_broker_has_its_arrival_quote(gateway: Process, session: aiohttp.ClientSession) -> None:
    order_id = await place(session, gateway, "first", MARKET)  # the first request after the start
    arrival = (await accepted_data(session, gateway, order_id))["quote"]
    assert 0 < arrival["bid"] < arrival["ask"]
    assert arrival["at"]
    answer = await do_order.post(gateway, "narrow", **NARROW)
    assert (answer.status, answer.json["status"]) == (201, "filled")


@pytest.mark.parametrize(
    "fault",
    [
        {"quotes_5xx": 1},
        {"quotes_garbage": 1},
        {"crossed_quotes": 1},
        {"lagging_quotes": 30},
        {"slow_quotes": 30},
    ],
    ids=lambda fault: next(iter(fault)),
)
async def test_a_fault_of_the_market_is_no_quote_and_no_error_of_an_order(
    fault: dict[str, float], gateway: Process, broker: VenueProcess, session: aiohttp.ClientSession
) -> None:
    await until_status(session, gateway, 200)
    await broker.set_faults(**fault)
    await until_status(session, gateway, 503)
    assert do_order.error(await do_order.post(gateway, "narrow", **NARROW)) == (503, "BROKER_DOWN")
    order_id = await place(session, gateway, "without", MARKET)
    assert "quote" not in await accepted_data(session, gateway, order_id)
    await broker.clear_faults()
    await until_status(session, gateway, 200)
    assert (await do_order.post(gateway, "narrow", **NARROW)).status == 201
    assert "Traceback" not in gateway.log


async def test_a_broker_that_is_killed_has_no_quote_until_it_is_back(
    gateway: Process, broker: VenueProcess, session: aiohttp.ClientSession
) -> None:
    await until_status(session, gateway, 200)
    broker.kill()
    await until_status(session, gateway, 503)
    await place(session, gateway, "while-it-is-gone", {**MARKET, "timeInForce": "GTC", "type": "LIMIT", "price": 1})
    await broker.start()
    await until_status(session, gateway, 200)
    assert gateway.log.count("quotes_unavailable") == 1  # once for the whole time
    assert "Traceback" not in gateway.log


async def test_a_gateway_starts_while_its_broker_hangs(
    database_url: str, cluster: Cluster, broker: VenueProcess, session: aiohttp.ClientSession
) -> None:
    await broker.set_faults(slow_quotes=3600)
    settings = broker.client_settings(SWITCHYARD_DATABASE_URL=database_url, **QUICK)
    gateway = await cluster.process("gateway", "gateway", **settings).start()
    assert (await quote(session, gateway))[0] == 503
    await place(session, gateway, "one", MARKET)
