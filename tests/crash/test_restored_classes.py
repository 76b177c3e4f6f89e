"""An older database is put back: it is noticed before anything is sent, and nothing is executed twice."""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.dying import dying_command
from tests.support.evidence import audit_lines, tool_settings
from tests.support.exactly_once import CLASSES, Snapshot, check_executions, settled
from tests.support.load import Client, pages
from tests.support.postgres import PostgresServer
from tests.support.process import ROOT, Process, run_command, until
from tests.support.simulator import Simulator, venue_settings

KEPT = 200
RESTING = 10
# Odd numbers, which are orders that may wait: each of them is executed before the older database comes back.
KEYS = [f"key-{number}" for number in range(1, 600, 2)]
FILES = ("switchyard.db", "switchyard.db-wal", "switchyard.db-shm")


class House:
    """A process on one engine with its venue, and a backup of its database."""

    def __init__(self, folder: Path, dedupe: str, server: PostgresServer | None) -> None:
        self.folder = folder
        self.dedupe = dedupe
        self.simulator = Simulator(folder / "venue", dedupe)
        self._server = server
        self._database = server.create_database() if server else ""
        settings = {"SWITCHYARD_DATABASE_URL": self._database} if server else {}
        self.process = Process(folder, **settings, **venue_settings(dedupe, self.simulator), PYTHONPATH=str(ROOT))

    def back_up(self) -> None:
        if self._server:
            self._dump = self._server.dump(self._database)
        else:
            copy(self.folder / "var", self.folder / "backup")

    def restore(self) -> None:
        if self._server:
            self._server.restore(self._database, self._dump)
        else:
            copy(self.folder / "backup", self.folder / "var")

    async def settled(self) -> list[Snapshot]:
        return await settled(self.process, self.simulator, dedupe=self.dedupe)

    def close(self) -> None:
        self.process.close()
        self.simulator.close()


@pytest.fixture
def houses(tmp_path: Path, postgres_server: PostgresServer) -> Iterator[list[House]]:
    made = [House(tmp_path / dedupe, dedupe, None) for dedupe in CLASSES]
    made.append(House(tmp_path / "postgres", "open_only", postgres_server))
    yield made
    for house in made:
        house.close()


async def test_a_database_from_before_the_last_hundred_orders_executes_nothing_twice(houses: list[House]) -> None:
    await asyncio.gather(*map(finished_rows_and_unfinished_ones, houses))


async def test_an_order_that_rests_at_the_venue_is_asked_for_and_not_sent_again(houses: list[House]) -> None:
    await asyncio.gather(*map(resting_orders, houses))


async def finished_rows_and_unfinished_ones(house: House) -> None:
    process, simulator = house.process, house.simulator
    client = Client(process)
    # It dies in mid-send: the backup has rows that are sent, that are being sent and that wait, and knows of no end.
    honest, process.command = process.command, dying_command("after_the_answer")
    await process.start()
    await client.insist(KEYS[:KEPT])
    await simulator.start()
    await until(lambda: not process.is_running)
    house.back_up()
    process.command = honest
    await process.start()
    await client.insist(KEYS[KEPT:])
    await house.settled()
    assert await asyncio.to_thread(process.stop) == 0

    house.restore()
    before = simulator.check_nothing_twice()
    process.spawn()
    assert await asyncio.to_thread(process.wait) == 4
    assert "switchyard db restored" in process.log
    declared = await restored(process)
    assert declared["epoch"] == 2
    assert declared["rows"] > KEPT // 2

    await process.start()
    orders = await house.settled()
    assert check_executions(simulator, orders) == before, "something was executed because of the restore"
    await check_books(process, orders, client, before)
    verified = await asyncio.to_thread(run_command, "audit", "verify", **tool_settings(process))
    assert verified.returncode == 0, verified.stderr


async def resting_orders(house: House) -> None:
    process, simulator = house.process, house.simulator
    await process.start()
    async with aiohttp.ClientSession() as session:
        for number in range(RESTING):
            await place(session, process, f"resting-{number}", price=1)
        process.kill()  # the venue is not up yet: the backup believes that nothing was sent
        house.back_up()
        await simulator.start()
        await process.start()
        await until_all(session, process, "WORKING")
        assert await asyncio.to_thread(process.stop) == 0

        house.restore()
        declared = await restored(process)
        assert declared["rows"] == RESTING
        await process.start()
        # One that is filled shows that the worker is at work: whatever it sends by itself, it has begun to send.
        await place(session, process, "afterwards", price=1000)
        # A resting order makes no reports: nobody tells, and where nobody can be asked either it stays in doubt.
        await until_all(session, process, "UNKNOWN" if house.dedupe == "none" else "WORKING", "FILLED")
    assert await asyncio.to_thread(process.stop) == 0
    assert len(simulator.check_nothing_twice()) == RESTING + 1


async def restored(process: Process) -> dict[str, int]:
    """What `db restored` answers."""
    ended = await asyncio.to_thread(run_command, "db", "restored", "--json", **tool_settings(process))
    declared: dict[str, int] = json.loads(ended.stdout)
    return declared


async def place(session: aiohttp.ClientSession, process: Process, key: str, price: int) -> None:
    body = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "price": price, "qty": 1000}
    async with session.post(f"{process.url}/orders", json=body, headers=process.headers(key=key)) as response:
        assert response.status == 202


async def until_all(session: aiohttp.ClientSession, process: Process, *statuses: str) -> None:
    async def reached() -> bool:
        return {order["status"] for order in await pages(session, process)} == set(statuses)

    await until(reached, pause_seconds=0.1)


async def check_books(process: Process, orders: list[Snapshot], client: Client, executions: Counter[str]) -> None:
    """What came back agrees with the venue; what did not is reported as an execution that nobody here knows."""
    for order in orders:
        assert (order["status"] == "FILLED") == (executions[order["orderId"]] == 1)
    lost = set(client.acknowledged.values()) - {order["orderId"] for order in orders}
    assert len(lost) == len(KEYS) - KEPT
    lost_fills = sum(executions[order_id] for order_id in lost)
    assert lost_fills == len(lost)
    # Nobody waits for the audit file: it follows the journal.
    await until(lambda: unmatched_reports(process) >= lost_fills)
    assert unmatched_reports(process) == lost_fills


def unmatched_reports(process: Process) -> int:
    return sum(line["type"] == "ReportUnmatched" for line in audit_lines(process))


def copy(source: Path, target: Path) -> None:
    """The database's files as they are, in place of those that are there."""
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (target / name).unlink(missing_ok=True)
        if (source / name).exists():
            shutil.copy(source / name, target / name)
