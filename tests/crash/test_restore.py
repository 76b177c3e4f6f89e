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
from tests.support.postgres import PostgresServer
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


@pytest.mark.parametrize("folders", ["shared", "apart"])
async def test_a_worker_on_an_older_postgresql_database_sends_nothing_before_it_is_told(
    tmp_path: Path, postgres_server: PostgresServer, folders: str
) -> None:
    # A venue that would execute again what a blind worker sends again.
    simulator = Simulator(tmp_path / "venue", "open_only")
    settings = {"SWITCHYARD_DATABASE_URL": postgres_server.create_database()}
    assert run_command("db", "upgrade", **settings).returncode == 0
    gateway = Process(tmp_path / "gateway", "gateway", **settings)
    worker_folder = tmp_path / ("gateway" if folders == "shared" else "worker")
    worker = Process(worker_folder, "worker", **settings, **venue_settings("open_only", simulator))
    try:
        await simulator.start()
        await gateway.start()
        async with aiohttp.ClientSession() as session:
            client = Client(gateway)
            for number in range(1, 40, 2):  # orders that may wait for a worker
                await client.post(session, f"key-{number}")
            dump = postgres_server.dump(settings["SWITCHYARD_DATABASE_URL"])
            await worker.start()
            await all_final(session, gateway)
            before = simulator.executions()
            assert set(before) == set(client.acknowledged.values())
            assert worker.stop() == 0
            assert gateway.stop() == 0

            postgres_server.restore(settings["SWITCHYARD_DATABASE_URL"], dump)
            worker.spawn()
            assert worker.wait() == 4
            assert "switchyard db restored" in worker.log
            assert simulator.executions() == before
            told = run_command(
                "db", "restored", SWITCHYARD_DATA_DIR=gateway.settings["SWITCHYARD_DATA_DIR"], **settings
            )
            assert told.returncode == 0, told.stderr
            await gateway.start()
            await worker.start()
            assert {order["status"] for order in await all_final(session, gateway)} == {"FILLED"}
            assert simulator.executions() == before
    finally:
        for process in (worker, gateway, simulator):
            process.close()


async def test_a_worker_whose_database_is_replaced_by_an_older_one_ends(
    simulator: Simulator, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    url = postgres_server.create_database()
    assert run_command("db", "upgrade", SWITCHYARD_DATABASE_URL=url).returncode == 0
    gateway = Process(tmp_path, "gateway", SWITCHYARD_DATABASE_URL=url)
    worker = Process(tmp_path, "worker", SWITCHYARD_DATABASE_URL=url, **venue_settings("forever", simulator))
    try:
        await gateway.start()
        dump = postgres_server.dump(url)
        await worker.start()
        async with aiohttp.ClientSession() as session:
            await Client(gateway).post(session, "key-1")
            await all_final(session, gateway)
        gateway.kill()
        await until((tmp_path / "var/head.json").exists)
        postgres_server.restore(url, dump)
        assert worker.wait() == 4
        assert "an older database seems to have been restored" in worker.log
    finally:
        worker.close()
        gateway.close()


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
