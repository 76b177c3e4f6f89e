"""A worker that is asked to stop finishes what it has begun: it leaves no doubt behind."""

import asyncio
from pathlib import Path

import aiohttp

from tests.support.load import FINAL, Client, pages
from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_command, until
from tests.support.simulator import Simulator, venue_settings

STOPS = 5
ORDERS_PER_STOP = 60


async def test_a_worker_that_is_stopped_under_load_leaves_no_order_in_doubt(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    # At such a venue a doubt would stay: nobody can be asked, and nothing is sent twice.
    simulator = Simulator(tmp_path / "venue", "none")
    settings = {
        "SWITCHYARD_DATABASE_URL": postgres_server.create_database(),
        # Few at a time, so that there is always somebody in the middle of something.
        "OUTBOX_BATCH_SIZE": "4",
        "OUTBOX_PARALLELISM": "1",
        **venue_settings("none", simulator),
    }
    assert run_command("db", "upgrade", **settings).returncode == 0
    gateway = Process(tmp_path / "gateway", "gateway", **settings)
    worker = Process(tmp_path / "worker", "worker", **settings)
    client = Client(gateway)
    try:
        await asyncio.gather(simulator.start(), gateway.start())
        async with aiohttp.ClientSession() as session:
            # Odd numbers are orders that may wait.
            for number in range(1, 2 * STOPS * ORDERS_PER_STOP, 2):
                await client.post(session, f"key-{number}")
            for stop in range(1, STOPS + 1):
                await worker.start()
                await until(lambda: simulator.executions().total() >= stop * ORDERS_PER_STOP // 2)  # noqa: B023
                assert await asyncio.to_thread(worker.stop) == 0
            statuses = {order["status"] for order in await pages(session, gateway)}
            assert "UNKNOWN" not in statuses
            assert "SENDING" not in statuses
            await worker.start()
            await until(lambda: all_final(session, gateway))
    finally:
        for process in (worker, gateway, simulator):
            process.close()
    assert set(simulator.executions().values()) == {1}


async def all_final(session: aiohttp.ClientSession, gateway: Process) -> bool:
    return all(order["status"] in FINAL for order in await pages(session, gateway))
