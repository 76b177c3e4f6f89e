"""The kill switch under load, in real processes, with the venue's own log as the judge."""

import asyncio
import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import aiohttp
import pytest

from switchyard.adapters.system_clock import SystemClock
from switchyard.entrypoints.http.transport.auth import issue_token
from tests.support.cluster import Cluster
from tests.support.orders import FINAL, all_orders, get, place, until_all, until_statuses
from tests.support.polling import until
from tests.support.process import SECRET, Process
from tests.support.upgraded import upgraded_database
from tests.support.venue_process import VenueProcess

RESTING = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "price": 1, "timeInForce": "GTC", "qty": 1000}
FILLED_AT_ONCE = {**RESTING, "price": 1000}
POSTERS = 8
# Of each poster, before the kill and after it.
ORDERS_BEFORE = 25
ORDERS_AFTER = 10


async def admin(session: aiohttp.ClientSession, gateway: Process, method: str, path: str, **body: Any) -> Any:
    """The answer to an operator's request, which must be 200."""
    token = issue_token(SECRET, "desk", clock=SystemClock(), ttl=timedelta(hours=1), scopes=["admin:kill"])
    headers = {"Authorization": f"Bearer {token}"}
    async with session.request(method, gateway.url + path, json=body or None, headers=headers) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def kill_everything(session: aiohttp.ClientSession, gateway: Process, wait: int = 0) -> Any:
    return await admin(session, gateway, "POST", f"/admin/kill?wait={wait}", everything=True, reason="a drill")


class Load:
    """Posts orders over several gateways, and counts the answers."""

    def __init__(self, session: aiohttp.ClientSession, gateways: Sequence[Process]) -> None:
        self._session = session
        self._gateways = itertools.cycle(gateways)
        self.accepted: set[str] = set()
        self.rejected: set[str] = set()
        self.is_killed = False
        self.accepted_after_the_answer: list[str] = []

    async def run(self) -> None:
        """Post until each poster had its answers before and after the kill."""
        await asyncio.gather(*(self._poster() for _ in range(POSTERS)))

    async def _poster(self) -> None:
        left = ORDERS_AFTER
        for number in itertools.count():
            began_after = self.is_killed
            await self._post(RESTING if number % 2 else FILLED_AT_ONCE, began_after)
            left -= began_after
            if not left:
                return

    async def _post(self, body: dict[str, Any], began_after: bool) -> None:
        gateway = next(self._gateways)
        async with self._session.post(f"{gateway.url}/orders", json=body, headers=gateway.headers()) as response:
            answer = await response.json()
        if response.status == 202:
            self.accepted.add(answer["orderId"])
            if began_after:
                self.accepted_after_the_answer.append(answer["orderId"])
            return
        if response.status == 503:
            return  # the queue is full for a moment
        assert (response.status, answer["reason"]) == (422, "KILL_SWITCH"), answer
        self.rejected.add(answer["orderId"])


@pytest.fixture(params=["up", "two gateways and a worker"])
async def site(request: pytest.FixtureRequest, cluster: Cluster) -> tuple[VenueProcess, list[Process], Process]:
    """A venue, the gateways, and the process that sends."""
    venue = await cluster.broker().start()
    settings = venue.client_settings(VENUE_SWEEP_SEC_SIM="0.5")
    if request.param == "up":
        process = await cluster.process(**settings).start()
        return venue, [process], process
    settings["SWITCHYARD_DATABASE_URL"] = await upgraded_database(request.getfixturevalue("postgres_server"))
    gateways = [cluster.process("gateway", f"gateway-{number}", **settings) for number in range(2)]
    worker = cluster.process("worker", "worker", **settings)
    await asyncio.gather(*(process.start() for process in (*gateways, worker)))
    return venue, gateways, worker


async def test_under_load_no_new_order_reaches_the_venue_after_the_answer(
    site: tuple[VenueProcess, list[Process], Process], session: aiohttp.ClientSession
) -> None:
    venue, gateways, worker = site
    load = Load(session, gateways)
    posting = asyncio.create_task(load.run())
    await until(lambda: len(venue.orders()) > POSTERS * ORDERS_BEFORE)

    answer = await kill_everything(session, gateways[0])
    load.is_killed = True
    allowed = set(venue.executions()) | set(answer["inFlight"])
    await posting

    assert load.accepted_after_the_answer == []
    assert len(load.rejected) >= POSTERS * ORDERS_AFTER
    assert set(venue.check_nothing_twice()) <= allowed
    path = f"/admin/kill/{answer['killId']}"

    async def is_drained() -> bool:
        return bool((await admin(session, gateways[-1], "GET", path))["drained"])

    await until(is_drained, lambda: worker.log)
    told = await admin(session, gateways[-1], "GET", path)
    assert set(told["counts"]) <= {"CANCELED", "TOO_LATE"}
    assert told["position"] == answer["position"]
    orders = await until_all(session, gateways[0], lambda order: order["status"] in FINAL)
    by_status = {order["orderId"]: order["status"] for order in orders}
    assert all(by_status[order_id] == "REJECTED" for order_id in load.rejected)
    assert set(venue.executions()) <= allowed

    # The process that sends is killed; the kill stays on after its restart.
    worker.kill()
    await worker.start()
    async with session.post(f"{gateways[0].url}/orders", json=RESTING, headers=gateways[0].headers()) as response:
        assert response.status == 422
    assert set(venue.executions()) <= allowed

    await admin(session, gateways[-1], "POST", f"{path}/clear", reason="the drill is over")
    order_id = await place(session, gateways[0], body=FILLED_AT_ONCE)
    await until(lambda: order_id in venue.executions())


async def test_orders_in_doubt_are_unknown_and_the_kill_is_not_drained(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    venue = await cluster.broker(dedupe="none", faults={"refused_5xx": 1}).start()
    process = await cluster.process(**venue.client_settings()).start()
    order_id = await place(session, process, body=RESTING)
    await until_statuses(session, process, "UNKNOWN")

    answer = await kill_everything(session, process, wait=1)

    assert (answer["drained"], answer["counts"]) == (False, {"UNKNOWN": 1})
    assert [(order["orderId"], order["fate"]) for order in answer["orders"]] == [(order_id, "UNKNOWN")]


async def test_no_order_in_doubt_is_sent_again_under_a_kill(cluster: Cluster, session: aiohttp.ClientSession) -> None:
    """The venue recognises the id for good, so that without the kill the order would be sent again."""
    venue = await cluster.broker(faults={"refused_5xx": 1}).start()
    process = await cluster.process(**venue.client_settings()).start()
    order_id = await place(session, process, body=RESTING)
    await until_statuses(session, process, "UNKNOWN")
    answer = await kill_everything(session, process)
    await venue.clear_faults()

    # The lookup finds nothing, for the whole window: the order ends unsent.
    [order] = await until_all(session, process, lambda order: order["status"] in FINAL)

    assert (order["orderId"], order["status"]) == (order_id, "CANCELED")
    assert venue.executions() == {}
    assert (await admin(session, process, "GET", f"/admin/kill/{answer['killId']}"))["drained"]


async def test_a_slow_venue_shows_what_is_in_flight(cluster: Cluster, session: aiohttp.ClientSession) -> None:
    venue = await cluster.broker(faults={"slow_bytes": 1}).start()
    process = await cluster.process(**venue.client_settings()).start()
    order_id = await place(session, process, body=RESTING)
    await until(lambda: order_id in venue.executions())

    answer = await kill_everything(session, process)

    assert (answer["inFlight"], answer["drained"]) == ([order_id], False)
    await venue.clear_faults()
    path = f"/admin/kill/{answer['killId']}"

    async def is_drained() -> bool:
        return bool((await admin(session, process, "GET", path))["drained"])

    await until(is_drained, lambda: process.log)
    [order] = await all_orders(session, process)
    assert order["status"] == "CANCELED"
    assert venue.check_nothing_twice() == {order_id: 1}


async def test_a_crash_before_the_cancels_does_not_lose_them(cluster: Cluster, session: aiohttp.ClientSession) -> None:
    venue = await cluster.broker().start()
    process = await cluster.process(**venue.client_settings()).start()
    for number in range(20):
        await place(session, process, f"rest-{number}", body=RESTING)
    await until_statuses(session, process, "WORKING")
    await venue.set_faults(rate_limit=1)  # no cancel gets through
    answer = await kill_everything(session, process)
    process.kill()
    await venue.clear_faults()

    await process.start()

    orders = await until_all(session, process, lambda order: order["status"] in FINAL)
    assert {order["status"] for order in orders} == {"CANCELED"}
    told = await admin(session, process, "GET", f"/admin/kill/{answer['killId']}")
    assert (told["active"], told["drained"], told["counts"]) == (True, True, {"CANCELED": 20})


async def test_a_venue_that_can_cancels_all_orders_with_one_request(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    venue = await cluster.broker().start()
    process = await cluster.process(**venue.client_settings(VENUE_CANCEL_ALL_SIM="true")).start()
    for number in range(20):
        await place(session, process, f"rest-{number}", body=RESTING)
    await until_statuses(session, process, "WORKING")

    answer = await kill_everything(session, process, wait=20)

    assert (answer["drained"], answer["counts"]) == (True, {"CANCELED": 20})
    assert "mass_cancel_sent" in process.log
    orders = await all_orders(session, process)
    events = [await get(session, process, f"/orders/{order['orderId']}/events") for order in orders]
    assert not [event for page in events for event in page["events"] if event["type"] == "CancelRequested"]


async def test_a_kill_of_a_part_of_a_venue_does_not_cancel_the_rest(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    venue = await cluster.broker().start()
    process = await cluster.process(**venue.client_settings(VENUE_CANCEL_ALL_SIM="true")).start()
    covered = await place(session, process, "covered", body=RESTING)
    other = await place(session, process, "other", body={**RESTING, "symbol": "EURUSD", "price": 0.5})
    await until_statuses(session, process, "WORKING")

    answer = await admin(session, process, "POST", "/admin/kill?wait=20", symbol="USDJPY", reason="a drill")

    assert [(order["orderId"], order["fate"]) for order in answer["orders"]] == [(covered, "CANCELED")]
    by_id = {order["orderId"]: order["status"] for order in await all_orders(session, process)}
    assert by_id == {covered: "CANCELED", other: "WORKING"}
    assert "mass_cancel_sent" not in process.log
