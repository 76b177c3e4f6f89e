"""Workers on a database that was replaced by an older one: they notice, and send nothing before they are told."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.load import Client, all_final
from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_command, until
from tests.support.simulator import Simulator, venue_settings


@pytest.fixture
async def simulator(tmp_path: Path) -> AsyncIterator[Simulator]:
    made = Simulator(tmp_path / "venue", "forever")
    await made.start()
    yield made
    made.close()


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
