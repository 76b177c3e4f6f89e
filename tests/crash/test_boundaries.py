"""SIGKILL at each boundary of a send, in each class of venue, over hundreds of orders."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.dying import BOUNDARIES
from tests.support.load import FINAL, Client, pages
from tests.support.postgres import PostgresServer
from tests.support.process import ROOT, Process, run_command, until
from tests.support.simulator import Simulator, venue_settings

ORDERS = 300
DEATHS = 3


@pytest.mark.parametrize("boundary", sorted(BOUNDARIES))
@pytest.mark.parametrize("dedupe", ["forever", "open_only", "none"])
async def test_a_worker_that_dies_there_executes_nothing_twice_and_loses_nothing(
    boundary: str, dedupe: str, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    settings = {"SWITCHYARD_DATABASE_URL": postgres_server.create_database()}
    assert run_command("db", "upgrade", **settings).returncode == 0
    simulator = Simulator(tmp_path / "venue", dedupe)
    gateway = Process(tmp_path / "gateway", "gateway", **settings)
    dying = Process(
        tmp_path / "worker", "worker", **settings, **venue_settings(dedupe, simulator), PYTHONPATH=str(ROOT)
    )
    dying.command = [sys.executable, "-m", "tests.support.dying", boundary]
    try:
        await simulator.start()
        await gateway.start()
        client = Client(gateway)
        async with aiohttp.ClientSession() as session:
            # Orders that may wait, so that each of them is sent however often the worker dies.
            for number in range(1, 2 * ORDERS, 2):
                await client.post(session, f"key-{number}")
            for _ in range(DEATHS):
                await dying.start()
                await until(lambda: not dying.is_running)
            assert dying.wait() == -9
            dying.command = gateway.command  # and now one that stays alive
            await dying.start()
            orders = await settled(session, gateway, dedupe, simulator)
        check(dedupe, simulator, orders, client)
    finally:
        for process in (dying, gateway, simulator):
            process.close()


async def settled(
    session: aiohttp.ClientSession, gateway: Process, dedupe: str, simulator: Simulator
) -> list[dict[str, Any]]:
    """The orders once nothing moves any more.

    A doubt lasts only where nobody can be asked, and only until the venue's report of an execution has come.
    """
    found: list[dict[str, Any]] = []

    async def nothing_moves() -> bool:
        found[:] = await pages(session, gateway)
        executions = simulator.executions()
        return all(
            order["status"] in FINAL
            or (dedupe == "none" and order["status"] == "UNKNOWN" and not executions[order["orderId"]])
            for order in found
        )

    await until(nothing_moves)
    return found


def check(dedupe: str, simulator: Simulator, orders: list[dict[str, Any]], client: Client) -> None:
    executions = simulator.executions()
    assert max(executions.values()) == 1, "the venue took an order twice"
    assert {order["orderId"] for order in orders} == set(client.acknowledged.values())
    assert len(orders) == ORDERS
    statuses = Counter(order["status"] for order in orders)
    assert set(statuses) <= ({"FILLED", "UNKNOWN"} if dedupe == "none" else {"FILLED"})
    for order in orders:
        if order["status"] == "FILLED":
            assert (executions[order["orderId"]], order["filledQty"]) == (1, 1000)
