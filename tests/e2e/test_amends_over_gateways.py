"""Amends over several processes: limits, repeats, and a storm of amends, fills, cancels and kills under faults."""

import asyncio
import random
from collections import Counter
from decimal import Decimal
from typing import Any

import aiohttp
import pytest

from tests.support.amending import (
    RESTING,
    amend,
    amending_settings,
    broker_orders,
    check_amends,
    insist,
    until_equal,
    until_settled,
)
from tests.support.cluster import Cluster
from tests.support.orders import get, place, until_all
from tests.support.polling import until
from tests.support.process import Process
from tests.support.venue_process import VenueProcess

ORDERS = 200
# Reports late, twice and out of order; answers lost, requests carried out late.
FAULTS = {
    "drop_answer": 0.15,
    "accepted_5xx": 0.1,
    "refused_5xx": 0.1,
    "accept_late": 0.4,
    "timed_share": 0.2,
    "duplicate_reports": 0.2,
    "reordered_reports": 0.2,
    "partial_fills": 3,
}


async def test_200_parallel_amends_over_two_gateways_never_exceed_the_open_notional(
    cluster: Cluster, database_url: str, session: aiohttp.ClientSession
) -> None:
    limit = 25_000_000
    broker = await cluster.broker().start()
    settings = amending_settings(
        broker, "in_place", SWITCHYARD_DATABASE_URL=database_url, RISK_MAX_OPEN_NOTIONAL=str(limit)
    )
    one, two, worker = (
        cluster.process(role, name, **settings)
        for role, name in (("gateway", "one"), ("gateway", "two"), ("worker", "worker"))
    )
    await asyncio.gather(one.start(), two.start(), worker.start())
    # 1,000 at 100 each: 20,000,000 of the limit.
    placing = (place(session, one, body=RESTING, qty=1000) for _ in range(ORDERS))
    orders = await asyncio.gather(*placing)
    await until_all(session, one, lambda order: order["status"] == "WORKING")

    answers = await asyncio.gather(
        *(
            amend(session, (one, two)[number % 2], order_id, f"key-{number}", qty=10_000)
            for number, order_id in enumerate(orders)
        )
    )

    fitting = (limit - 20_000_000) // 900_000  # each amend adds 9,000 at 100
    assert Counter(status for status, *_ in answers) == {202: fitting, 422: ORDERS - fitting}
    assert {body["reason"] for status, body, _ in answers if status == 422} == {"LIMIT_OPEN_NOTIONAL"}
    await until_equal(session, one, broker)
    check_amends(broker, [body for status, body, _ in answers if status == 202])
    at_broker = sum(Decimal(str(leg["qty"])) * 100 for leg in broker_orders(broker).values())
    for gateway in (one, two):
        exposure = await get(session, gateway, "/risk/exposure")
        assert exposure["currencies"][0]["openNotional"] == at_broker == 20_000_000 + fitting * 900_000


async def test_a_repeated_amend_is_one_request_at_the_venue_over_two_gateways_and_after_kills(
    cluster: Cluster, database_url: str, session: aiohttp.ClientSession
) -> None:
    broker = await cluster.broker(dedupe="open_only").start()
    settings = amending_settings(broker, "in_place", SWITCHYARD_DATABASE_URL=database_url)
    one, two, worker = (
        cluster.process(role, name, **settings)
        for role, name in (("gateway", "one"), ("gateway", "two"), ("worker", "worker"))
    )
    await asyncio.gather(one.start(), two.start(), worker.start())
    order_id = await place(session, one, body=RESTING)
    await until_all(session, one, lambda order: order["status"] == "WORKING")
    await broker.set_faults(drop_answer=1.0)

    answers = await asyncio.gather(
        *(amend(session, (one, two)[number % 2], order_id, "the-key", qty=700, price=90) for number in range(50))
    )
    await until(lambda: bool(broker.events("amend")), lambda: worker.log)
    worker.kill()
    one.kill()
    await broker.clear_faults()
    await asyncio.gather(one.start(), worker.start())
    settled = await until_settled(session, one, [(order_id, "the-key", {"qty": 700, "price": 90})])

    assert Counter(status for status, *_ in answers) == {202: 50}
    assert sum(replayed for *_, replayed in answers) == 49
    assert {body["amendId"] for _, body, _ in answers} == {settled["the-key"]["amendId"]}
    assert settled["the-key"]["status"] == "AMENDED"
    assert (len(broker.events("amend")), broker.events("repeat")) == (1, [])
    status, conflict, _ = await amend(session, two, order_id, "the-key", qty=701, price=90)
    assert (status, conflict["reason"]) == (409, "IDEMPOTENCY_CONFLICT")
    await until_equal(session, two, broker)


@pytest.mark.parametrize(
    ("mode", "dedupe"), [("in_place", "open_only"), ("cancel_replace", "forever")], ids=["in_place", "cancel_replace"]
)
async def test_the_broker_and_the_journal_agree_after_a_storm_of_amends_fills_cancels_and_kills(
    cluster: Cluster, session: aiohttp.ClientSession, engine_settings: dict[str, str], mode: str, dedupe: str
) -> None:
    broker = await cluster.broker("--amend", mode, dedupe=dedupe).start()
    process = await cluster.process(**amending_settings(broker, mode, **engine_settings)).start()
    await broker.set_faults(**FAULTS)
    chance, requests = random.Random(mode), list[tuple[str, str, dict[str, Any]]]()
    for turn in range(3):
        orders = [await place(session, process, body=RESTING, qty=2000) for _ in range(12)]
        await asyncio.gather(*(storm(session, process, order_id, chance, requests) for order_id in orders))
        if turn == 1:
            process.kill()
            await process.start()
    await kill_switch(session, process)
    await broker.clear_faults()
    answers = await until_settled(session, process, requests)

    # A doubt is settled by lookups, so a repeat is one that came late itself.
    check_amends(broker, answers.values(), repeats=True)
    await until_equal(session, process, broker)
    assert len({answer["status"] for answer in answers.values()}) == 2, "the storm is too mild to show anything"


async def storm(
    session: aiohttp.ClientSession,
    process: Process,
    order_id: str,
    chance: random.Random,
    requests: list[tuple[str, str, dict[str, Any]]],
) -> None:
    """Amend an order several times, in the end perhaps to a price that fills it, and cancel some."""
    for number in range(4):
        price = chance.choice([90, 110, 1000]) if number == 3 else chance.choice([80, 90, 110])
        key, body = f"{order_id}-{number}", {"qty": chance.choice([1300, 1700, 2500, 3500]), "price": price}
        status, answer, _ = await amend(session, process, order_id, key, **body)
        if status == 202:
            requests.append((order_id, key, body))
        else:
            assert answer["reason"] in (
                "AMEND_PENDING",
                "CANCEL_PENDING",
                "ORDER_FINAL",
                "NO_CHANGE",
                "QTY_FILLED",
            ), answer
        await asyncio.sleep(chance.uniform(0, 0.3))
    if chance.random() < 0.3:
        await session.post(f"{process.url}/orders/{order_id}/cancel", headers=process.headers())


async def kill_switch(session: aiohttp.ClientSession, process: Process) -> None:
    """Kill the account while amends are under way: none begins after that, and the open orders are cancelled."""
    orders = [await place(session, process, body=RESTING) for _ in range(8)]
    await asyncio.gather(*(insist(session, process, order_id, f"{order_id}-kill", qty=1200) for order_id in orders))
    scope = {"account": "demo", "reason": "storm"}
    operator = process.headers(scopes=["admin:kill"], subject="ann")
    async with session.post(f"{process.url}/admin/kill", json=scope, headers=operator) as response:
        assert response.status == 200, await response.text()
    status, answer, _ = await amend(session, process, orders[0], "under-the-kill", qty=1300)
    assert (status, answer["reason"]) in ((422, "KILL_SWITCH"), (409, "CANCEL_PENDING"), (409, "ORDER_FINAL")), answer


async def test_a_venue_that_does_not_amend_gets_no_amend_and_no_substitute(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker: VenueProcess = await cluster.broker("--amend", "none").start()
    process = await cluster.process(**broker.client_settings()).start()
    order_id = await place(session, process, body=RESTING)
    await until_all(session, process, lambda order: order["status"] == "WORKING")
    status, answer, _ = await amend(session, process, order_id, "key", qty=2000)
    assert (status, answer["reason"]) == (422, "NOT_AMENDABLE")
    assert {line["event"] for line in broker.events()} == {"order"}
