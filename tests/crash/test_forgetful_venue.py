"""A venue that forgets what it has filled and reports late: absent there does not mean that nothing was executed."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.load import pages
from tests.support.process import Process, until
from tests.support.simulator import Simulator, venue_settings

ORDER = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "price": 1000, "timeInForce": "GTC", "qty": 1000}
# Several acceptance windows, so that whoever takes 'absent' for 'never executed' acts on it before the report comes.
FAULTS = {"drop_answer": 1.0, "late_reports": 6.0}
WINDOW = {"VENUE_WINDOW_SEC_SIM": "1"}


@pytest.fixture(params=["--lookup=open", "--fault=not_found_after_fill=1"])
async def venue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Simulator]:
    simulator = Simulator(tmp_path / "venue", "open_only", FAULTS)
    simulator.arguments.append(request.param)
    await simulator.start()
    yield simulator
    simulator.close()


async def place(session: aiohttp.ClientSession, process: Process) -> str:
    async with session.post(f"{process.url}/orders", json=ORDER, headers=process.headers(key="once")) as response:
        assert response.status == 202
        return str((await response.json())["orderId"])


async def test_an_order_in_doubt_waits_for_its_report_and_is_executed_once(venue: Simulator, tmp_path: Path) -> None:
    settings = venue_settings("open_only", venue) | WINDOW | {"VENUE_LOOKUP_SIM": "open"}
    process = Process(tmp_path, **settings)
    try:
        await process.start()
        async with aiohttp.ClientSession() as session:
            order_id = await place(session, process)
            seen: list[str] = []

            async def is_filled() -> bool:
                [order] = await pages(session, process)
                seen.append(order["status"])
                return bool(order["status"] == "FILLED")

            await until(is_filled)
        assert "UNKNOWN" in seen
        assert venue.executions() == {order_id: 1}
    finally:
        process.close()


async def test_declaring_that_ended_orders_are_found_there_leads_to_a_second_execution(
    venue: Simulator, tmp_path: Path
) -> None:
    settings = venue_settings("open_only", venue) | WINDOW | {"VENUE_LOOKUP_SIM": "all"}
    process = Process(tmp_path, **settings)
    try:
        await process.start()
        async with aiohttp.ClientSession() as session:
            order_id = await place(session, process)
            await until(lambda: venue.executions()[order_id] >= 2)
    finally:
        process.close()
