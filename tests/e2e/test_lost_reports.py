"""A venue that fills and cancels without ever saying so: every order reaches its end by asking, each fill once."""

import re
from collections import Counter
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.load import FINAL, pages
from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_command, until
from tests.support.simulator import Simulator, venue_settings

ACROSS: dict[str, Any] = {"type": "LIMIT", "price": 1000, "timeInForce": "GTC"}
RESTING: dict[str, Any] = {"type": "LIMIT", "price": 1, "timeInForce": "GTC"}
HOPELESS: dict[str, Any] = {"type": "LIMIT", "price": 1, "timeInForce": "IOC"}
SILENT = {"drop_reports": 1.0, "partial_fills": 3}
# Later than a sweep waits before it asks: what it has applied is reported afterwards.
LATE = {"drop_reports": 0.0, "late_reports": 4.0}
TWICE = {"late_reports": 0.0, "duplicate_reports": 1.0}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Simulator]:
    simulator = Simulator(tmp_path / "venue", "open_only", SILENT)
    await simulator.start()
    yield simulator
    simulator.close()


@pytest.fixture(params=["sqlite", "postgres"])
async def switchyard(request: pytest.FixtureRequest, broker: Simulator, tmp_path: Path) -> AsyncIterator[Process]:
    settings = venue_settings("open_only", broker) | {"VENUE_SWEEP_SEC_SIM": "0.5"}
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        settings["SWITCHYARD_DATABASE_URL"] = server.create_database()
        assert run_command("db", "upgrade", **settings).returncode == 0
    process = await Process(tmp_path, **settings).start()
    yield process
    process.close()


class House:
    """The gateway as a client sees it, and the broker's own book beside it."""

    def __init__(self, session: aiohttp.ClientSession, switchyard: Process, broker: Simulator) -> None:
        self.session, self.switchyard, self.broker = session, switchyard, broker

    async def place(self, key: str, **body: Any) -> str:
        order = {"symbol": "USDJPY", "side": "BUY", "qty": 1000, **body}
        headers = self.switchyard.headers(key=key)
        async with self.session.post(f"{self.switchyard.url}/orders", json=order, headers=headers) as response:
            assert response.status == 202, await response.text()
            return str((await response.json())["orderId"])

    async def cancel(self, order_id: str) -> None:
        url = f"{self.switchyard.url}/orders/{order_id}/cancel"
        async with self.session.post(url, headers=self.switchyard.headers()) as response:
            assert response.status == 202, await response.text()

    async def orders(self) -> dict[str, dict[str, Any]]:
        return {order["orderId"]: order for order in await pages(self.session, self.switchyard)}

    async def until_working(self, *order_ids: str) -> None:
        async def reached() -> bool:
            found = await self.orders()
            return all(found[order_id]["status"] == "WORKING" for order_id in order_ids)

        await until(reached)

    async def until_ended(self) -> dict[str, dict[str, Any]]:
        async def reached() -> bool:
            return all(order["status"] in FINAL for order in (await self.orders()).values())

        await until(reached)
        return await self.orders()

    async def until_heard(self, reports: int) -> None:
        """Wait until the broker has told so many reports and each was applied or recognised."""
        await until(lambda: len(self.broker.lines("report")) == reports)

        async def heard() -> bool:
            results = [
                await self.metric(f'venue_reports_total{{result="{name}"}}') for name in ("applied", "duplicate")
            ]
            return sum(results) >= await self.metric("venue_missed_reports_total") + reports

        await until(heard)

    async def executions(self, order_id: str) -> list[dict[str, Any]]:
        """The fills that the journal tells of."""
        url = f"{self.switchyard.url}/orders/{order_id}/events?limit=500"
        async with self.session.get(url, headers=self.switchyard.headers()) as response:
            events = (await response.json())["events"]
        return [event["data"] for event in events if event["type"] == "ExecutionReport" and event["data"]["lastQty"]]

    async def metric(self, name: str) -> float:
        async with self.session.get(f"{self.switchyard.url}/metrics") as response:
            found = re.search(rf"^{re.escape(name)} (.*)$", await response.text(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    async def position(self) -> Decimal:
        """What the account holds, as the last fill in the journal left it."""
        url = f"{self.switchyard.url}/accounts/demo/events?limit=500"
        async with self.session.get(url, headers=self.switchyard.headers()) as response:
            events = (await response.json())["events"]
        held = [event["data"]["position"]["qty"] for event in events if "position" in event["data"]]
        return Decimal(str(held[-1]))

    async def move_into_the_market(self, order_id: str) -> None:
        """Let a resting order be filled, by the broker and behind our back."""
        [line] = [line for line in self.broker.lines("order") if line["trace_id"] == order_id]
        url = f"{self.broker.url}/orders/{line['client_order_id']}"
        async with self.session.patch(url, json={"limit_price": 1000}) as response:
            assert response.status == 200, await response.text()


@pytest.fixture
async def house(switchyard: Process, broker: Simulator) -> AsyncIterator[House]:
    async with aiohttp.ClientSession() as session:
        yield House(session, switchyard, broker)


async def test_what_is_never_reported_is_found_by_asking_and_a_late_word_changes_nothing(house: House) -> None:
    filled = [await house.place(f"across-{number}", **ACROSS) for number in range(5)]
    filled.append(await house.place("market", type="MARKET"))
    filled.append(await house.place("sold", side="SELL", type="MARKET"))
    expired = await house.place("hopeless", **HOPELESS)
    later = await house.place("later", **RESTING)
    unwanted = await house.place("unwanted", **RESTING)
    await house.until_working(later, unwanted)
    await house.move_into_the_market(later)
    await house.cancel(unwanted)

    orders = await house.until_ended()

    ends = {order_id: (order["status"], order["filledQty"]) for order_id, order in orders.items()}
    whole = dict.fromkeys([*filled, later], ("FILLED", 1000))
    assert ends == {**whole, expired: ("EXPIRED", 0), unwanted: ("CANCELED", 0)}
    assert house.broker.lines("report") == []
    await check_books(house, [*filled, later])
    assert await house.position() == 6000
    assert await house.metric("venue_missed_reports_total") == 3 * 8 + 2
    assert await house.metric("venue_quantity_gaps_total") == 0
    assert await house.metric("venue_orders_missing_total") == 0

    await house.broker.set_faults(house.session, LATE)
    overtaken = [await house.place(f"overtaken-{number}", **ACROSS) for number in range(3)]
    unwanted_too = await house.place("unwanted-too", **RESTING)
    await house.until_working(unwanted_too)
    await house.cancel(unwanted_too)
    before = await house.until_ended()
    await house.until_heard(3 * 3 + 1)
    assert await house.orders() == before
    await check_books(house, [*filled, later, *overtaken])
    assert await house.position() == 9000

    await house.broker.set_faults(house.session, TWICE)
    repeated = await house.place("repeated", **ACROSS)
    await house.until_heard(3 * 3 + 1 + 2 * 3)
    assert (await house.until_ended()).items() > before.items()
    await check_books(house, [*filled, later, *overtaken, repeated])
    assert await house.position() == 10_000


async def check_books(house: House, order_ids: list[str]) -> None:
    """The journal's fills are the broker's, each once."""
    booked: Counter[tuple[str, float]] = Counter()
    for order_id in order_ids:
        booked.update((data["execId"], data["lastQty"]) for data in await house.executions(order_id))
    assert booked == Counter((line["exec_id"], line["qty"]) for line in house.broker.lines("fill"))
    assert set(booked.values()) == {1}
