"""A wrong verdict: an order that an operator ended reaches its venue all the same, and an operator can see it."""

import asyncio

import aiohttp

from tests.support.cluster import Cluster
from tests.support.evidence import tool_settings
from tests.support.figures import scrape
from tests.support.orders import get, place, until_statuses
from tests.support.polling import until
from tests.support.process import run_command

VERDICT = ("--as", "not-sent", "--by", "night desk", "--reason", "not on the screen")


async def test_an_order_that_was_ended_by_a_wrong_verdict_degrades_health_while_its_venue_shows_it_open(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker = await cluster.broker(dedupe="none", faults={"accept_late": 12.0}).start()
    settings = broker.client_settings(VENUE_LOOKUP_SIM="all", VENUE_SWEEP_SEC_SIM="0.5")
    switchyard = await cluster.process(**settings).start()
    order_id = await place(session, switchyard, "late", price=1)
    await until_statuses(session, switchyard, "UNKNOWN")
    decided = await asyncio.to_thread(run_command, "outbox", "resolve", order_id, *VERDICT, **tool_settings(switchyard))
    assert decided.returncode == 0, decided.stderr
    await until(lambda: len(broker.events("order")) == 1)

    async def is_seen() -> bool:
        return bool((await get(session, switchyard, "/health"))["status"] == "degraded")

    await until(is_seen, lambda: switchyard.log)
    [problem] = (await get(session, switchyard, "/health"))["venues"]
    assert (problem["state"], problem["reason"]) == ("open", "ENDED_ORDERS_OPEN")
    operator = switchyard.headers(scopes=["admin:health"])
    async with session.get(f"{switchyard.url}/health", headers=operator) as response:
        assert order_id in (await response.json())["venues"][0]["reason"]
    assert (await scrape(session, switchyard.url))["venue_ended_orders_open_total{sim}"] == 1
    assert "ended_order_open_at_venue" in switchyard.log
    await until_statuses(session, switchyard, "CANCELED")
