"""A venue that never reports fills and cancels: the sweep finds every one of them, and each fill counts once."""

from collections import Counter
from decimal import Decimal
from typing import Any

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.figures import scrape
from tests.support.orders import (
    MARKET,
    PATIENT,
    Snapshot,
    all_orders,
    cancel,
    get,
    place,
    until_all,
    until_all_final,
)
from tests.support.polling import until
from tests.support.process import Process
from tests.support.venue_process import VenueProcess

RESTING: dict[str, Any] = {"price": 1}
EXPIRING: dict[str, Any] = {"price": 1, "timeInForce": "IOC"}
SILENT = {"drop_reports": 1.0, "partial_fills": 3}
# Later than the sweep asks: it has applied the fills before their reports arrive.
LATE = {"drop_reports": 0.0, "late_reports": 4.0}
TWICE = {"late_reports": 0.0, "duplicate_reports": 1.0}


@pytest.fixture
async def broker(cluster: Cluster) -> VenueProcess:
    return await cluster.broker(dedupe="open_only", faults=SILENT).start()


@pytest.fixture
async def switchyard(engine_settings: dict[str, str], broker: VenueProcess, cluster: Cluster) -> Process:
    return await cluster.process(**engine_settings, **broker.client_settings(VENUE_SWEEP_SEC_SIM="0.5")).start()


class ClientAndBroker:
    """A client of the gateway, and the broker whose log it compares with."""

    def __init__(self, session: aiohttp.ClientSession, switchyard: Process, broker: VenueProcess) -> None:
        self.session, self.switchyard, self.broker = session, switchyard, broker

    async def place(self, key: str, body: Snapshot = PATIENT, **changes: Any) -> str:
        return await place(self.session, self.switchyard, key, body, **changes)

    async def cancel(self, order_id: str) -> None:
        await cancel(self.session, self.switchyard, order_id)

    async def orders(self) -> dict[str, Snapshot]:
        return {order["orderId"]: order for order in await all_orders(self.session, self.switchyard)}

    async def until_working(self, *order_ids: str) -> None:
        await until_all(
            self.session,
            self.switchyard,
            lambda order: order["orderId"] not in order_ids or order["status"] == "WORKING",
        )

    async def until_ended(self) -> dict[str, Snapshot]:
        return {order["orderId"]: order for order in await until_all_final(self.session, self.switchyard)}

    async def until_reported(self, reports: int) -> None:
        """Wait until the broker has sent so many reports, and each was applied or recognised as a duplicate."""
        await until(lambda: len(self.broker.events("report")) == reports)

        async def are_recorded() -> bool:
            figures = await scrape(self.session, self.switchyard.url)
            recorded = sum(figures.get(f"venue_reports_total{{{result}}}", 0.0) for result in ("applied", "duplicate"))
            return recorded >= figures.get("venue_missed_reports_total", 0.0) + reports

        await until(are_recorded)

    async def fills(self, order_id: str) -> list[dict[str, Any]]:
        """The order's fills in the journal."""
        events = (await get(self.session, self.switchyard, f"/orders/{order_id}/events?limit=500"))["events"]
        return [event["data"] for event in events if event["type"] == "ExecutionReport" and "lastQty" in event["data"]]

    async def metric(self, name: str) -> float:
        return (await scrape(self.session, self.switchyard.url)).get(name, 0.0)

    async def position(self) -> Decimal:
        """The account's position after the last fill in the journal."""
        events = (await get(self.session, self.switchyard, "/accounts/demo/events?limit=500"))["events"]
        quantities = [event["data"]["position"].get("qty", 0) for event in events if "position" in event["data"]]
        return Decimal(str(quantities[-1]))

    async def move_into_the_market(self, order_id: str) -> None:
        """Change a resting order at the broker so that it is filled, without Switchyard."""
        [line] = [line for line in self.broker.events("order") if line["trace_id"] == order_id]
        url = f"{self.broker.url}/orders/{line['client_order_id']}"
        async with self.session.patch(url, json={"limit_price": 1000}) as response:
            assert response.status == 200, await response.text()


@pytest.fixture
def client(session: aiohttp.ClientSession, switchyard: Process, broker: VenueProcess) -> ClientAndBroker:
    return ClientAndBroker(session, switchyard, broker)


async def test_fills_that_are_never_reported_are_found_and_late_reports_change_nothing(client: ClientAndBroker) -> None:
    filled = [await client.place(f"across-{number}") for number in range(5)]
    filled.append(await client.place("market", MARKET))
    filled.append(await client.place("sold", MARKET, side="SELL"))
    expired = await client.place("expiring", **EXPIRING)
    later = await client.place("later", **RESTING)
    canceled = await client.place("canceled", **RESTING)
    await client.until_working(later, canceled)
    await client.move_into_the_market(later)
    await client.cancel(canceled)

    orders = await client.until_ended()

    ends = {order_id: (order["status"], order["filledQty"]) for order_id, order in orders.items()}
    complete = dict.fromkeys([*filled, later], ("FILLED", 1000))
    assert ends == {**complete, expired: ("EXPIRED", 0), canceled: ("CANCELED", 0)}
    assert client.broker.events("report") == []
    await check_fills(client, [*filled, later])
    assert await client.position() == 6000
    assert await client.metric("venue_missed_reports_total") == 3 * 8 + 2
    assert await client.metric("venue_quantity_gaps_total") == 0
    assert await client.metric("venue_orders_missing_total") == 0

    await client.broker.set_faults(**LATE)
    overtaken = [await client.place(f"overtaken-{number}") for number in range(3)]
    canceled_too = await client.place("canceled-too", **RESTING)
    await client.until_working(canceled_too)
    await client.cancel(canceled_too)
    before = await client.until_ended()
    await client.until_reported(3 * 3 + 1)
    assert await client.orders() == before
    await check_fills(client, [*filled, later, *overtaken])
    assert await client.position() == 9000

    await client.broker.set_faults(**TWICE)
    repeated = await client.place("repeated")
    await client.until_reported(3 * 3 + 1 + 2 * 3)
    assert (await client.until_ended()).items() > before.items()
    await check_fills(client, [*filled, later, *overtaken, repeated])
    assert await client.position() == 10_000


async def check_fills(client: ClientAndBroker, order_ids: list[str]) -> None:
    """Assert that the journal has the broker's fills, each once."""
    recorded: Counter[tuple[str, float]] = Counter()
    for order_id in order_ids:
        recorded.update((data["execId"], data["lastQty"]) for data in await client.fills(order_id))
    assert recorded == Counter((line["exec_id"], line["qty"]) for line in client.broker.events("fill"))
    assert set(recorded.values()) == {1}
