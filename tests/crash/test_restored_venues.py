"""A restore loses orders that went to another venue, or under a later id of their key: their keys are repeated."""

import asyncio
from collections import Counter
from typing import Any

import aiohttp
import pytest

from tests.support.amending import RESTING
from tests.support.backups import SqliteBackup, declare_restored
from tests.support.cluster import Cluster
from tests.support.do_order import post
from tests.support.evidence import check_audit
from tests.support.gateway import CheckedResponse
from tests.support.orders import all_orders, cancel, get, place, until_statuses
from tests.support.polling import until
from tests.support.process import Process
from tests.support.venue_process import VenueProcess

NAMES = ("resting", "cancelled", "filled")


def two_venues(cluster: Cluster, dedupe: str) -> tuple[VenueProcess, VenueProcess, dict[str, str]]:
    """Two brokers, and the settings of a process that uses both and prefers the first one."""
    one, two = (cluster.broker(dedupe=dedupe, name=name) for name in ("simA", "simB"))
    settings = {"SOR_VENUES": "simA,simB", "SOR_DEFAULT_VENUE": "simA|simB", "SWITCHYARD_LOG_LEVEL": "warning"}
    for name, venue in (("SIMA", one), ("SIMB", two)):
        settings |= {f"VENUE_URL_{name}": venue.url, f"VENUE_DEDUPE_{name}": dedupe, f"VENUE_WINDOW_SEC_{name}": "2"}
        settings[f"VENUE_SWEEP_SEC_{name}"] = "1"
    return one, two, settings


async def place_all(session: aiohttp.ClientSession, process: Process) -> dict[str, str]:
    bodies = {"resting": RESTING, "cancelled": RESTING, "filled": {**RESTING, "price": 1000}}
    return {name: await place(session, process, name, body=bodies[name], qty=10_000) for name in NAMES}


async def shown(session: aiohttp.ClientSession, process: Process) -> dict[str, tuple[Any, ...]]:
    """Status, venue and filled quantity of each order."""
    return {
        order["orderId"]: (order["status"], order["venue"], order["filledQty"])
        for order in await all_orders(session, process)
    }


async def accepted_for(session: aiohttp.ClientSession, process: Process, order_id: str) -> str:
    """The venue for which the order was accepted; it may have gone on to another one since."""
    events = (await get(session, process, f"/orders/{order_id}/events"))["events"]
    [venue] = [event["data"]["order"]["venue"] for event in events if event["type"] == "OrderAccepted"]
    return str(venue)


@pytest.mark.parametrize("dedupe", ["forever", "open_only"])
@pytest.mark.parametrize("reports", ["kept", "lost"])
async def test_orders_that_the_lost_history_sent_to_another_venue_go_on_there(
    cluster: Cluster, session: aiohttp.ClientSession, dedupe: str, reports: str
) -> None:
    one, two, settings = two_venues(cluster, dedupe)
    process = cluster.process(**settings)
    backup = SqliteBackup(cluster.folder)
    await asyncio.gather(one.start(), two.start(), process.start())
    assert await asyncio.to_thread(process.stop) == 0
    backup.take()
    process.settings["SOR_DEFAULT_VENUE"] = "simB|simA"
    await process.start()
    if reports == "lost":
        await two.set_faults(drop_reports=1)
    lost = await place_all(session, process)
    await until(lambda: len(two.orders()) == len(NAMES), lambda: process.log)
    assert await asyncio.to_thread(process.stop) == 0
    await two.clear_faults()

    backup.restore()
    declare_restored(process)
    process.settings["SOR_DEFAULT_VENUE"] = "simA|simB"
    await process.start()
    orders = await place_all(session, process)
    assert [await accepted_for(session, process, order_id) for order_id in orders.values()] == ["simA"] * len(NAMES)
    await cancel(session, process, orders["cancelled"])
    expected = {
        orders["resting"]: ("WORKING", "simB", 0),
        orders["cancelled"]: ("CANCELED", "simB", 0),
        orders["filled"]: ("FILLED", "simB", 10_000),
    }

    async def is_settled() -> bool:
        return await shown(session, process) == expected

    await until(is_settled, lambda: f"{process.log}")
    assert not one.orders()
    assert two.check_nothing_twice() == Counter(lost.values())
    [position] = (await get(session, process, "/positions"))["positions"]
    assert position["qty"] == 10_000
    await check_audit(process, process.folder)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_an_order_that_the_lost_history_sent_under_a_later_id_of_its_key_goes_on_under_that(
    cluster: Cluster, session: aiohttp.ClientSession, is_cancelled: bool
) -> None:
    broker = cluster.broker(dedupe="open_only")
    process = cluster.process(**broker.client_settings(VENUE_SWEEP_SEC_SIM="1", DO_RATE_PER_MIN="10000"))
    backup = SqliteBackup(cluster.folder)
    await process.start()
    assert await asyncio.to_thread(process.stop) == 0
    backup.take()
    await process.start()
    assert (await repeated(process)).status == 503  # never sent
    await broker.start()
    await until(lambda: is_placed(process, broker), lambda: process.log)
    assert await asyncio.to_thread(process.stop) == 0

    backup.restore()
    declare_restored(process)
    await process.start()
    # While the venue is closed: it must have been answering for some seconds, so that nothing lost can still arrive.
    answer = asyncio.create_task(repeated(process))
    await until_statuses(session, process, "ACCEPTED")
    [order] = await all_orders(session, process)
    if is_cancelled:
        await cancel(session, process, order["orderId"])

    async def is_settled() -> bool:
        return await shown(session, process) == {order["orderId"]: ("FILLED", "sim", 10_000)}

    await until(is_settled, lambda: process.log)
    assert (await answer).status in (201, 504)
    [client_id] = broker.orders().elements()
    assert not client_id.endswith("00000")
    [position] = (await get(session, process, "/positions"))["positions"]
    assert position["qty"] == 10_000
    await check_audit(process, process.folder)


async def repeated(process: Process) -> CheckedResponse:
    return await post(process, "k", account="demo", price=1000, time_in_force="IOC")


async def is_placed(process: Process, broker: VenueProcess) -> bool:
    """Whether a repeat of the request has reached the broker: until then each is tried again under the next id."""
    await repeated(process)
    return bool(broker.orders())
