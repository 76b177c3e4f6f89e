"""`db restored` is killed after each of its commits, and workers restart meanwhile: nothing is sent."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.dying_restore import COMMAND
from tests.support.evidence import tool_settings
from tests.support.load import LoadClient
from tests.support.orders import all_orders
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.process import Process, clean_environment, run_command
from tests.support.venue_process import VenueProcess

# Three pages of rows.
ROWS = 1_200
MANY_ROWS = 5_000
# Of class C: once a row is in doubt nothing may ever send it, so every execution is one too many.
DEDUPE = "none"


class Restored:
    """A PostgreSQL database that was put back to a time when its orders waited."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self.server = server
        self.url = server.create_database()
        assert run_command("db", "upgrade", SWITCHYARD_DATABASE_URL=self.url).returncode == 0
        self.simulator = VenueProcess(folder / "venue", dedupe=DEDUPE)
        self.gateway = Process(folder, "gateway", SWITCHYARD_DATABASE_URL=self.url)
        self.worker = Process(
            folder,
            "worker",
            SWITCHYARD_DATABASE_URL=self.url,
            **self.simulator.client_settings(),
        )

    async def prepare(self, rows: int) -> None:
        await self.simulator.start()
        await self.gateway.start()
        client = LoadClient(self.gateway)
        await client.insist(f"key-{number}" for number in range(1, 2 * rows, 2))
        dump = self.server.dump(self.url)
        await client.insist(["later-1"])
        assert await asyncio.to_thread(self.gateway.stop) == 0
        self.server.restore(self.url, dump)

    async def is_refused(self) -> bool:
        self.worker.spawn()
        return await asyncio.to_thread(self.worker.wait) == 4

    async def check_all_in_doubt(self, rows: int) -> None:
        await self.gateway.start()
        await self.worker.start()
        async with aiohttp.ClientSession() as session:
            orders = await all_orders(session, self.gateway)
        assert len(orders) == rows
        assert {order["status"] for order in orders} == {"UNKNOWN"}
        assert not self.simulator.executions()

    def close(self) -> None:
        for process in (self.worker, self.gateway, self.simulator):
            process.close()


@pytest.fixture
def restored(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[Restored]:
    made = Restored(tmp_path, postgres_server)
    yield made
    made.close()


async def test_killed_after_each_commit_it_continues_and_nothing_is_sent_meanwhile(restored: Restored) -> None:
    await restored.prepare(ROWS)
    assert await restored.is_refused()
    environment = clean_environment(**tool_settings(restored.gateway))
    for _ in range(5):  # the epoch, its event, three pages
        killed = await asyncio.to_thread(
            subprocess.run, [*COMMAND, "db", "restored"], env=environment, capture_output=True, check=False
        )
        assert killed.returncode < 0, killed.stderr
        assert await restored.is_refused()
        assert "run `switchyard db restored` to finish" in restored.worker.log
    done = await asyncio.to_thread(run_command, "db", "restored", **tool_settings(restored.gateway))
    assert done.returncode == 0, done.stderr
    assert "finished an interrupted `db restored` of epoch 2: nothing was sent meanwhile" in done.stdout
    await restored.check_all_in_doubt(ROWS)


async def test_a_worker_that_is_restarted_all_the_time_sends_none_of_the_rows(restored: Restored) -> None:
    await restored.prepare(MANY_ROWS)
    starts = 0

    async def supervise() -> None:
        nonlocal starts
        while True:
            assert await restored.is_refused()
            starts += 1

    supervisor = asyncio.create_task(supervise())
    await until(lambda: starts > 0, pause_seconds=0.05)
    done = await asyncio.to_thread(run_command, "db", "restored", **tool_settings(restored.gateway))
    assert done.returncode == 0, done.stderr
    assert f"{MANY_ROWS} unfinished outbox rows are uncertain" in done.stdout
    # The start after the end of the command is not refused: the supervisor waits for that worker.
    supervisor.cancel()
    await asyncio.gather(supervisor, return_exceptions=True)
    restored.worker.close()
    await restored.check_all_in_doubt(MANY_ROWS)
