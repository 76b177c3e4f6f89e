"""A worker that is paused in mid-send: nobody sends in its place, and what it says afterwards changes nothing."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.load import pages
from tests.support.planted import planted_command
from tests.support.postgres import PostgresServer
from tests.support.process import ROOT, Process, run_command, until
from tests.support.simulator import Simulator, venue_settings

ORDER = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "price": 1000, "timeInForce": "GTC", "qty": 1000}


@pytest.fixture(params=["forever", "open_only", "none"])
async def venue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, Simulator]]:
    simulator = Simulator(tmp_path / "venue", request.param)
    await simulator.start()
    yield request.param, simulator
    simulator.close()


async def test_a_worker_paused_in_mid_send_leads_to_one_execution_and_no_second_word(
    venue: tuple[str, Simulator], tmp_path: Path, postgres_server: PostgresServer
) -> None:
    dedupe, simulator = venue
    await paused_in_mid_send(dedupe, simulator, tmp_path, postgres_server)


async def test_without_its_fence_the_paused_worker_would_be_heard(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    simulator = Simulator(tmp_path / "venue", "forever")
    try:
        await simulator.start()
        planted = planted_command("fence_removed")
        with pytest.raises(AssertionError, match="a stale worker has changed"):
            await paused_in_mid_send("forever", simulator, tmp_path, postgres_server, planted)
    finally:
        simulator.close()


async def paused_in_mid_send(
    dedupe: str,
    simulator: Simulator,
    tmp_path: Path,
    postgres_server: PostgresServer,
    command: list[str] | None = None,
) -> None:
    settings = {
        "PYTHONPATH": str(ROOT),
        "SWITCHYARD_DATABASE_URL": postgres_server.create_database(),
        "OUTBOX_STUCK_THRESHOLD_MIN": "0.05",
        **venue_settings(dedupe, simulator),
    }
    assert run_command("db", "upgrade", **settings).returncode == 0
    gateway = Process(tmp_path / "gateway", "gateway", **settings)
    first, second = (Process(tmp_path / name, "worker", **settings) for name in ("first", "second"))
    try:
        first.command = command or first.command
        async with aiohttp.ClientSession() as session:
            await gateway.start()
            await first.start()
            await simulator.set_faults(session, {"slow_bytes": 0.2})  # the answer takes far longer than the pause
            for number in range(5):
                await place(session, gateway, f"key-{number}")
            await until(lambda: len(simulator.executions()) == 5)
            first.send(signal.SIGSTOP)
            await simulator.set_faults(session, {"slow_bytes": 0.0})
            await second.start()
            # The venue's reports are evidence in every class; the sends themselves come into doubt as they hang.
            await until_all(session, gateway, "FILLED")
            await until(
                lambda: run_command("outbox", "list", "--status", "sending", "--json", **settings).stdout == "[]\n"
            )
            versions = {order["orderId"]: order["version"] for order in await pages(session, gateway)}
            first.send(signal.SIGCONT)
            second.kill()
            # The paused one is awake and at work again when it has sent something new.
            await place(session, gateway, "afterwards")
            await until(lambda: len(simulator.executions()) == 6)
            assert first.stop() == 0  # drained: whatever it had to say of the old sends, it has said by now
            orders = await pages(session, gateway)
            after = {order["orderId"]: order["version"] for order in orders if order["orderId"] in versions}
            assert after == versions, "a stale worker has changed an order"
            assert set(simulator.check_nothing_twice()) == {order["orderId"] for order in orders}
    finally:
        for process in (gateway, first, second):
            process.close()


async def place(session: aiohttp.ClientSession, gateway: Process, key: str) -> None:
    async with session.post(f"{gateway.url}/orders", json=ORDER, headers=gateway.headers(key=key)) as response:
        assert response.status == 202


async def until_all(session: aiohttp.ClientSession, gateway: Process, status: str) -> None:
    async def reached() -> bool:
        orders: list[dict[str, Any]] = await pages(session, gateway)
        return {order["status"] for order in orders} == {status}

    await until(reached, pause_seconds=0.1)
