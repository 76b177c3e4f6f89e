"""Older state comes back (a data folder, an audit file, a database under a running worker): nothing is sent twice."""

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.evidence import audit_lines, tool_settings
from tests.support.exactly_once import settled
from tests.support.load import LoadClient
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_command
from tests.support.redis import RedisServer
from tests.support.venue_process import VenueProcess

# Odd numbers: orders that may wait for their venue.
KEYS = [f"key-{number}" for number in range(1, 40, 2)]
# The venue would execute again what a blind worker sends again.
DEDUPE = "open_only"


class House:
    """A process with its venue, and orders that wait in a backup and were executed after it."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.simulator = VenueProcess(folder / "venue", dedupe=DEDUPE)
        self.process = Process(folder, **self.simulator.client_settings(), **settings)
        self.data, self.backup = folder / "var", folder / "backup"

    async def back_up_before_sending(self) -> None:
        """Accept the orders while the venue is down, copy the data folder, then let the venue execute them."""
        await self.process.start()
        await LoadClient(self.process).insist(KEYS)
        assert await asyncio.to_thread(self.process.stop) == 0
        shutil.copytree(self.data, self.backup)
        await self.simulator.start()
        await self.process.start()
        await settled(self.process, self.simulator)
        assert await asyncio.to_thread(self.process.stop) == 0
        assert len(self.simulator.check_nothing_twice()) == len(KEYS)

    def put_back(self) -> None:
        shutil.rmtree(self.data)
        shutil.copytree(self.backup, self.data)

    async def is_refused(self, process: Process | None = None) -> bool:
        """Whether a start ends at once, says what to do and sends nothing."""
        before = self.simulator.executions()
        process = process or self.process
        process.spawn()
        code = await asyncio.to_thread(process.wait)
        assert self.simulator.executions() == before
        return code == 4 and "switchyard db restored" in process.log

    async def command(self, *arguments: str) -> str:
        ended = await asyncio.to_thread(run_command, *arguments, **tool_settings(self.process))
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    async def check_executed_once(self) -> None:
        await self.process.start()
        orders = await settled(self.process, self.simulator)
        assert {order["status"] for order in orders} == {"FILLED"}
        assert len(self.simulator.check_nothing_twice()) == len(KEYS)

    def close(self) -> None:
        self.process.close()
        self.simulator.close()


async def first_event(process: Process, last_event_id: int) -> str:
    """The first event after `ready` of the account's stream from this id on."""
    headers = {**process.headers(), "Last-Event-ID": str(last_event_id)}
    async with aiohttp.ClientSession() as session, session.get(f"{process.url}/stream", headers=headers) as response:
        async for line in response.content:
            if line.startswith(b"event: ") and line != b"event: ready\n":
                return line.removeprefix(b"event: ").decode().strip()
    raise AssertionError("the stream ended")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path)
    yield made
    made.close()


async def test_a_data_folder_put_back_as_a_whole_sends_nothing_before_it_is_declared_restored(house: House) -> None:
    await house.back_up_before_sending()
    lost_id = audit_lines(house.process)[-1]["seq"]
    house.put_back()
    kept_id = audit_lines(house.process)[-1]["seq"]
    assert await house.is_refused()
    declared = json.loads(await house.command("db", "restored", "--json"))
    assert declared == {"epoch": 2, "rows": len(KEYS), "continued": False, "kills": 0}
    await house.check_executed_once()
    # A reader that saw events which are lost is told so, however many came after them; one that did not goes on.
    assert await first_event(house.process, lost_id) == "resync_required"
    assert await first_event(house.process, kept_id) == "order_update"


async def test_an_empty_data_folder_in_the_place_of_a_known_one_is_rejected(house: House) -> None:
    await house.simulator.start()
    await house.process.start()
    await LoadClient(house.process).insist(KEYS[:1])
    await settled(house.process, house.simulator)
    assert await asyncio.to_thread(house.process.stop) == 0
    [head] = (house.folder / "state").glob("head-*.json")
    house.data.rename(house.folder / "elsewhere")  # its volume is not mounted
    house.data.mkdir()
    house.process.spawn()
    assert await asyncio.to_thread(house.process.wait) == 4
    assert f"if a new database is meant, which knows none of the orders and keys of the old one, remove {head}" in (
        house.process.log
    )
    upgraded = await asyncio.to_thread(run_command, "db", "upgrade", **tool_settings(house.process))
    assert (upgraded.returncode, len(upgraded.stderr.splitlines())) == (4, 1)

    shutil.rmtree(house.data)
    (house.folder / "elsewhere").rename(house.data)
    await house.process.start()
    assert await asyncio.to_thread(house.process.stop) == 0
    assert len(house.simulator.check_nothing_twice()) == 1

    shutil.rmtree(house.data)
    head.unlink()
    await house.process.start()


async def test_what_was_only_tried_out_on_paper_may_be_deleted_until_a_venue_outside_is_set(tmp_path: Path) -> None:
    process, state = Process(tmp_path), tmp_path / "state"

    async def orders_new_on_a_new_database() -> bool:
        """Place an order with the same key, and return whether the database was new."""
        await process.start()
        await LoadClient(process).insist(KEYS[:1])
        assert await asyncio.to_thread(process.stop) == 0
        return "a new database" in process.log.rpartition("Switchyard is up")[2]

    async def reset() -> tuple[int, str]:
        ended = await asyncio.to_thread(run_command, "reset", "--yes", **tool_settings(process))
        return ended.returncode, ended.stdout + ended.stderr

    house = None
    try:
        assert await orders_new_on_a_new_database()
        assert not await orders_new_on_a_new_database()
        shutil.rmtree(tmp_path / "var")
        assert await orders_new_on_a_new_database()
        assert list(state.glob("head-*")) == []

        await process.start()
        assert (await reset())[0] == 4  # a process uses the folder
        assert await asyncio.to_thread(process.stop) == 0
        secret = (tmp_path / "var/journal_key").read_bytes()
        assert (await reset())[0] == 0
        assert (tmp_path / "var/journal_key").read_bytes() == secret
        assert await orders_new_on_a_new_database()

        house = House(tmp_path)  # the same folder, with a broker
        await house.simulator.start()
        await house.process.start()  # nothing is sent yet
        assert await asyncio.to_thread(house.process.stop) == 0
        [head] = state.glob("head-*.json")
        code, said = await reset()  # without the broker in the settings
        assert (code, str(head) in said) == (4, True)
        shutil.rmtree(tmp_path / "var")
        process.spawn()
        assert await asyncio.to_thread(process.wait) == 4
        assert f"there is no database in {tmp_path / 'var'}, but there was one" in process.log
    finally:
        process.close()
        if house is not None:
            house.close()


async def test_an_emptied_postgresql_database_is_rejected(tmp_path: Path, postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    process = Process(tmp_path, SWITCHYARD_DATABASE_URL=url)
    try:
        await process.start()
        await LoadClient(process).insist(KEYS[:1])
        assert await asyncio.to_thread(process.stop) == 0
        postgres_server.empty(url)
        process.spawn()
        assert await asyncio.to_thread(process.wait) == 4
        place = url.replace("postgres@", "")
        assert f"there is no database in {place}, but there was one" in process.log
    finally:
        process.close()


async def test_an_earlier_audit_file_is_rebuilt_as_a_restored_database(house: House) -> None:
    await house.back_up_before_sending()
    tags = {client_id[:4] for client_id in house.simulator.orders()}
    house.data.rename(house.folder / "replaced")
    await house.command("replay", str(house.backup / "gateway/audit.log"))
    await house.check_executed_once()
    await LoadClient(house.process).insist(["another-1"])
    await until(lambda: len(house.simulator.orders()) == len(KEYS) + 1)
    assert await asyncio.to_thread(house.process.stop) == 0
    assert {client_id[:4] for client_id in house.simulator.orders()} == tags
    # The rebuilt database is the same installation: the one that it replaced is now the older one.
    assert len(list((house.folder / "state").glob("head-*.json"))) == 1
    shutil.rmtree(house.data)
    (house.folder / "replaced").rename(house.data)
    assert await house.is_refused()


async def test_an_operator_can_state_that_a_database_is_the_newest(house: House) -> None:
    await house.back_up_before_sending()
    house.put_back()
    assert await house.is_refused()
    house.simulator.kill()
    shutil.copy(house.simulator.events_path, house.folder / "book")
    assert "epoch 2" in await house.command("db", "newest", "--by", "ann", "--reason", "a drill on a fresh venue")
    await house.process.start()
    await until(lambda: any(line["type"] == "EpochOpened" for line in audit_lines(house.process)))
    [opened] = [line for line in audit_lines(house.process) if line["type"] == "EpochOpened"]
    assert (opened["data"]["cause"], opened["data"]["by"]) == ("newest", "ann")
    assert await asyncio.to_thread(house.process.stop) == 0
    await house.command("audit", "verify")


async def test_a_state_folder_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    broker = VenueProcess(tmp_path / "venue", dedupe=DEDUPE)
    process = Process(tmp_path, **broker.client_settings(), SWITCHYARD_STATE_DIR=str(tmp_path / "file/state"))
    try:
        await process.start()
        await LoadClient(process).insist(["key-1"])
        await until(lambda: "head_write_failed" in process.log and str(tmp_path / "file/state") in process.log)
        assert await asyncio.to_thread(process.stop) == 0
    finally:
        process.close()


async def test_a_head_on_redis_reveals_an_older_machine(tmp_path: Path, redis_server: RedisServer) -> None:
    house = House(tmp_path, SWITCHYARD_REDIS_URL=redis_server.url)
    try:
        await house.back_up_before_sending()
        house.put_back()
        shutil.rmtree(tmp_path / "state")
        assert await house.is_refused()
        assert "Redis key" in house.process.log
    finally:
        house.close()


async def test_orders_that_only_the_venue_knows_close_it(house: House) -> None:
    await asyncio.gather(house.simulator.start(), house.process.start())
    assert await asyncio.to_thread(house.process.stop) == 0
    shutil.copytree(house.data, house.backup)
    await house.process.start()
    await LoadClient(house.process).insist(KEYS)
    await settled(house.process, house.simulator)
    assert await asyncio.to_thread(house.process.stop) == 0
    before = house.simulator.check_nothing_twice()
    house.put_back()
    shutil.rmtree(house.folder / "state")  # no copy of the head shows that this database is older
    await house.process.start()
    await LoadClient(house.process).insist(["another-1"])
    await until(lambda: "venue_closed" in house.process.log or house.simulator.executions() != before)
    assert await asyncio.to_thread(house.process.stop) == 0
    assert house.simulator.executions() == before


async def test_a_file_moved_over_the_open_database_ends_the_process(house: House) -> None:
    process = house.process
    await process.start()
    await LoadClient(process).insist(KEYS[:3])
    shutil.copy(house.data / "switchyard.db", house.data / "older.db")
    (house.data / "older.db").rename(house.data / "switchyard.db")
    client = LoadClient(process)
    await house.simulator.start()  # its orders would be sent now
    await until(lambda: not process.is_running)
    assert await asyncio.to_thread(process.wait) == 4
    assert "replaced while this process had it open" in process.log
    assert not client.acknowledged
    assert not house.simulator.executions()


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
async def test_no_order_is_acknowledged_after_the_wal_was_removed(house: House, suffix: str) -> None:
    process = house.process
    await process.start()
    before, after = LoadClient(process), LoadClient(process)
    await before.insist(KEYS[:3])
    (house.data / f"switchyard.db{suffix}").unlink()
    async with aiohttp.ClientSession() as session:
        for key in KEYS:  # repeats and new orders
            await after.post(session, key)
    assert not after.acknowledged
    await until(lambda: not process.is_running)
    assert await asyncio.to_thread(process.wait) == 4
    assert f"switchyard.db{suffix} was moved, removed or replaced" in process.log
    await process.start()
    again = LoadClient(process)
    await again.insist(KEYS[:3])
    assert again.acknowledged == before.acknowledged


async def test_a_paused_gateway_does_not_hide_what_the_others_have_seen(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    url = postgres_server.create_database()
    assert run_command("db", "upgrade", SWITCHYARD_DATABASE_URL=url).returncode == 0
    simulator = VenueProcess(tmp_path / "venue", dedupe=DEDUPE)
    paused = Process(tmp_path, "gateway", SWITCHYARD_DATABASE_URL=url)
    gateway = Process(tmp_path, "gateway", SWITCHYARD_DATABASE_URL=url)
    worker = Process(tmp_path, "worker", SWITCHYARD_DATABASE_URL=url, **simulator.client_settings())
    try:
        await paused.start()
        await gateway.start()
        await LoadClient(gateway).insist(KEYS)
        dump = postgres_server.dump(url)
        await until(lambda: len(list((tmp_path / "state").glob("head-*.json"))) == 1)
        paused.send(signal.SIGSTOP)
        await simulator.start()
        await worker.start()
        await settled(gateway, simulator)
        for process in (worker, gateway):
            assert await asyncio.to_thread(process.stop) == 0
        postgres_server.restore(url, dump)
        worker.spawn()
        assert await asyncio.to_thread(worker.wait) == 4
        assert "switchyard db restored" in worker.log
        assert len(simulator.check_nothing_twice()) == len(KEYS)
    finally:
        for process in (worker, gateway, paused, simulator):
            process.close()


async def test_an_older_postgresql_database_under_a_running_worker_sends_nothing(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    url = postgres_server.create_database()
    assert run_command("db", "upgrade", SWITCHYARD_DATABASE_URL=url).returncode == 0
    simulator = VenueProcess(tmp_path / "venue", dedupe=DEDUPE)
    gateway = Process(tmp_path, "gateway", SWITCHYARD_DATABASE_URL=url)
    worker = Process(tmp_path, "worker", SWITCHYARD_DATABASE_URL=url, **simulator.client_settings())
    try:
        await gateway.start()
        await LoadClient(gateway).insist(KEYS)
        dump = postgres_server.dump(url)
        await simulator.start()
        await worker.start()
        await settled(gateway, simulator)
        gateway.kill()
        postgres_server.restore(url, dump)
        assert await asyncio.to_thread(worker.wait) == 4
        # Its supervisor starts it again: what it had seen is in the head files.
        worker.spawn()
        assert await asyncio.to_thread(worker.wait) == 4
        assert len(simulator.check_nothing_twice()) == len(KEYS)
    finally:
        for process in (worker, gateway, simulator):
            process.close()
