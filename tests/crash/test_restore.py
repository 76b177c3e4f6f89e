"""An older database is put back: it is noticed before anything is sent, and nothing is executed twice."""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.load import Client, all_final
from tests.support.process import Process, run_command, until
from tests.support.simulator import Simulator, venue_settings

FILES = ("switchyard.db", "switchyard.db-wal", "switchyard.db-shm")


@pytest.fixture
async def simulator(tmp_path: Path) -> AsyncIterator[Simulator]:
    made = Simulator(tmp_path / "venue", "forever")
    await made.start()
    yield made
    made.close()


async def test_a_database_from_before_the_last_hundred_orders_executes_nothing_twice(
    simulator: Simulator, tmp_path: Path
) -> None:
    process = Process(tmp_path, **venue_settings("forever", simulator))
    client = Client(process)
    try:
        await process.start()
        await post_until(client, 100)
        process.kill()  # with rows on their way, which the backup then believes unfinished
        copy(tmp_path / "var", tmp_path / "backup")
        known = len(client.acknowledged)
        await process.start()
        await post_until(client, known + 100)
        async with aiohttp.ClientSession() as session:
            await all_final(session, process)
        assert process.stop() == 0

        copy(tmp_path / "backup", tmp_path / "var")
        before = simulator.executions()
        process.spawn()
        assert process.wait() == 4
        assert "switchyard db restored" in process.log
        settings = {name: value for name, value in process.settings.items() if name != "SWITCHYARD_PORT"}
        declared = json.loads(run_command("db", "restored", "--json", **settings).stdout)
        assert declared["epoch"] == 2

        await process.start()
        async with aiohttp.ClientSession() as session:
            orders = await all_final(session, process)
        assert simulator.executions() == before, "something was executed because of the restore"
        assert set(before.values()) == {1}
        await check_books(process, orders, client, before)
        verified = run_command("audit", "verify", **settings)
        assert verified.returncode == 0, verified.stderr
    finally:
        process.close()


async def check_books(process: Process, orders: list[dict[str, Any]], client: Client, executions: Counter[str]) -> None:
    """What came back agrees with the venue; what did not is reported as an execution that nobody here knows."""
    for order in orders:
        assert (order["status"] == "FILLED") == (executions[order["orderId"]] == 1)
    lost = set(client.acknowledged.values()) - {order["orderId"] for order in orders}
    assert len(lost) >= 50
    lost_fills = sum(executions[order_id] for order_id in lost)
    # Nobody waits for the audit file: it follows the journal.
    await until(lambda: unmatched_reports(process) >= lost_fills)
    assert unmatched_reports(process) == lost_fills


def unmatched_reports(process: Process) -> int:
    text = (process.folder / "var/gateway/audit.log").read_text("utf-8")
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return sum(line["type"] == "ReportUnmatched" for line in lines)


async def post_until(client: Client, count: int) -> None:
    stop = asyncio.Event()
    load = asyncio.create_task(client.load(stop))
    await until(lambda: len(client.acknowledged) >= count)
    stop.set()
    await load


def copy(source: Path, target: Path) -> None:
    """The database's files as they are, in place of those that are there."""
    target.mkdir(exist_ok=True)
    for name in FILES:
        (target / name).unlink(missing_ok=True)
        if (source / name).exists():
            shutil.copy(source / name, target / name)
