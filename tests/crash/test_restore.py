"""Workers on a PostgreSQL database that was replaced by an older one: they detect it and send nothing."""

from pathlib import Path

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.load import LoadClient
from tests.support.orders import until_all_final
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.process import run_command


@pytest.mark.parametrize("folders", ["shared", "apart"])
async def test_a_worker_on_an_older_database_sends_nothing_before_db_restored(
    cluster: Cluster, postgres_server: PostgresServer, database_url: str, session: aiohttp.ClientSession, folders: str
) -> None:
    # A venue that executes again an order that is sent again.
    broker = await cluster.broker(dedupe="open_only").start()
    settings = {"SWITCHYARD_DATABASE_URL": database_url}
    gateway = await cluster.process("gateway", "gateway", **settings).start()
    worker_folder = "gateway" if folders == "shared" else "worker"
    worker = cluster.process("worker", worker_folder, **settings, **broker.client_settings())
    client = LoadClient(gateway)
    for number in range(1, 40, 2):  # orders that may wait for a worker
        await client.post(session, f"key-{number}")
    dump = postgres_server.dump(database_url)
    await worker.start()
    await until_all_final(session, gateway)
    before = broker.executions()
    assert set(before) == set(client.acknowledged.values())
    assert worker.stop() == 0
    assert gateway.stop() == 0

    postgres_server.restore(database_url, dump)
    worker.spawn()
    assert worker.wait() == 4
    assert "switchyard db restored" in worker.log
    assert broker.executions() == before
    declared = run_command("db", "restored", SWITCHYARD_DATA_DIR=gateway.settings["SWITCHYARD_DATA_DIR"], **settings)
    assert declared.returncode == 0, declared.stderr
    await gateway.start()
    await worker.start()
    assert {order["status"] for order in await until_all_final(session, gateway)} == {"FILLED"}
    assert broker.executions() == before


async def test_a_running_worker_exits_when_its_database_is_replaced_by_an_older_one(
    cluster: Cluster,
    postgres_server: PostgresServer,
    database_url: str,
    session: aiohttp.ClientSession,
    tmp_path: Path,
) -> None:
    broker = await cluster.broker().start()
    gateway = await cluster.process("gateway", SWITCHYARD_DATABASE_URL=database_url).start()
    worker = cluster.process("worker", SWITCHYARD_DATABASE_URL=database_url, **broker.client_settings())
    dump = postgres_server.dump(database_url)
    await worker.start()
    await LoadClient(gateway).post(session, "key-1")
    await until_all_final(session, gateway)
    gateway.kill()
    await until((tmp_path / "var/head.json").exists)
    postgres_server.restore(database_url, dump)
    assert worker.wait() == 4
    assert "an older database seems to have been restored" in worker.log
