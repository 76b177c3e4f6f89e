"""The back office as a child process: killed, stopped, slow, without disk, and left behind by its parent."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.books import KEEPS_BOOKS, office_pid, read_books
from tests.support.cluster import Cluster
from tests.support.evidence import tool_settings
from tests.support.load import LoadClient
from tests.support.orders import get, place, until_all_final
from tests.support.planted_office import EXIT, FULL, PAGES_MAX, SLOW, STOP, STOPPED
from tests.support.polling import until
from tests.support.process import Process, run_command
from tests.support.wrapped import command

MARKET = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000}
PAGE_BYTES = 4096
# What is committed between two looks of the checkpointer, and while a silent process is found out.
WAL_BYTES_MAX = 16 * PAGES_MAX * PAGE_BYTES


def planted(cluster: Cluster) -> Process:
    """A process whose back office misbehaves on demand."""
    process = cluster.process(name="site", **KEEPS_BOOKS, SWITCHYARD_LOG_LEVEL="warning")
    process.command = command("planted_office")
    return process


def is_alive(pid: int) -> bool:
    """Whether there is such a process, also as a zombie of a parent that is about to look at it."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


async def until_dead(pid: int) -> None:
    """Wait for the end of a process; one that lives on all the same does not outlive the test."""
    try:
        await until(lambda: not is_alive(pid))
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def open_files(pid: int) -> list[tuple[str, int]]:
    """The files that a process has open, each with its access mode."""
    found = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        flags = Path(f"/proc/{pid}/fdinfo/{file.name}").read_text().split()[3]
        found.append((str(file.readlink()), int(flags, 8) & os.O_ACCMODE))
    return found


def restarts_of_wal(process: Process) -> int:
    """How often the journal's WAL was begun again: the sequence number in its header."""
    with (process.folder / "var" / "switchyard.db-wal").open("rb") as wal:
        return int.from_bytes(wal.read(16)[12:16])


def wal_bytes(process: Process) -> int:
    return (process.folder / "var" / "switchyard.db-wal").stat().st_size


@asynccontextmanager
async def loaded(process: Process) -> AsyncIterator[LoadClient]:
    """Post orders all the time."""
    client, stop = LoadClient(process), asyncio.Event()
    loading = asyncio.create_task(client.load(stop))
    try:
        yield client
    finally:
        stop.set()
        await loading


async def until_accepted(client: LoadClient, more: int) -> None:
    """Wait until so many more orders were accepted."""
    wanted = len(client.acknowledged) + more
    await until(lambda: len(client.acknowledged) >= wanted, lambda: client.process.log)


async def booked(session: aiohttp.ClientSession, process: Process) -> Counter[str]:
    """How often the fills of each order are in the ledger."""
    found: Counter[str] = Counter()
    path = "/ledger?type=Fill&limit=1000"
    while True:
        page = await read_books(session, process, path)
        found.update(entry["orderId"] for entry in page["entries"])
        if page["nextCursor"] is None:
            return found
        path = f"/ledger?type=Fill&limit=1000&cursor={page['nextCursor']}"


async def check_books(session: aiohttp.ClientSession, process: Process) -> None:
    """Wait until every fill is booked; none is booked twice."""
    orders = await until_all_final(session, process)
    filled = {order["orderId"] for order in orders if order["filledQty"]}
    assert filled

    async def are_booked() -> bool:
        try:
            return (await booked(session, process)).keys() == filled
        except aiohttp.ClientError:  # it starts again
            return False

    await until(are_booked, lambda: process.log, pause_seconds=0.1)
    assert set((await booked(session, process)).values()) == {1}


async def until_health(session: aiohttp.ClientSession, process: Process, books: str | None) -> None:
    """Wait until `/health` shows this about the books."""

    async def is_shown() -> bool:
        return bool((await get(session, process, "/health")).get("books") == books)

    await until(is_shown, lambda: process.log, pause_seconds=0.05)


async def checks(session: aiohttp.ClientSession, process: Process) -> dict[str, Any]:
    shown = await get(session, process, "/health/ready")
    return {check["check"]: check["status"] for check in shown["checks"]}


async def test_a_killed_up_leaves_no_back_office_and_the_next_one_starts_at_once(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    process = await cluster.process(name="site", **KEEPS_BOOKS).start()
    async with loaded(process) as client:
        for was_stopped in (False, True):
            await until_accepted(client, 30)
            child = office_pid(process.pid)
            if was_stopped:
                os.kill(child, signal.SIGSTOP)
            process.kill()
            await until_dead(child)
            await process.start()
    await check_books(session, process)
    # It has the journal open for reads only, and neither its lock nor a socket of the parent's.
    child = office_pid(process.pid)
    opened = open_files(child)
    assert {mode for path, mode in opened if path.endswith("/switchyard.db")} == {os.O_RDONLY}
    assert not [path for path, _ in opened if path.endswith(("switchyard.db.lock", "audit.log", "sim.db.lock"))]
    second = await asyncio.to_thread(run_command, "up", **tool_settings(process) | {"SWITCHYARD_PORT": "0"})
    assert (second.returncode, "another process is using" in second.stderr) == (4, True), second.stderr
    assert office_pid(process.pid) == child
    # Ctrl-C reaches the parent alone, which ends the child in order.
    process.send(signal.SIGINT)
    assert process.wait() == 0
    assert not is_alive(child)
    assert "switchyard up has stopped" in process.log
    assert "Traceback" not in process.log
    verified = await asyncio.to_thread(run_command, "backoffice", "rebuild", "--verify", **tool_settings(process))
    assert (verified.returncode, "no difference" in verified.stdout) == (0, True), verified.stderr


async def test_a_killed_back_office_is_started_again_and_books_every_fill_once(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    process = await planted(cluster).start()
    async with loaded(process) as client:
        for _ in range(2):
            await until_accepted(client, 50)
            child = office_pid(process.pid)
            os.kill(child, signal.SIGKILL)
            await until_accepted(client, 50)  # orders go on without it
            await until_health(session, process, None)
            assert office_pid(process.pid) != child
        # It cannot start: that is shown, and orders go on.
        (process.folder / EXIT).touch()
        os.kill(office_pid(process.pid), signal.SIGKILL)
        await until_health(session, process, "NOT_RUNNING")
        await until_accepted(client, 50)
        shown = await checks(session, process)
        assert (shown["books"], shown["reconcile"], shown["journal"]) == ("degraded", "degraded", "ok")
        (process.folder / EXIT).unlink()
        await until_health(session, process, None)
    await check_books(session, process)
    assert process.stop() == 0


async def test_a_back_office_that_is_stopped_in_a_read_is_replaced_before_the_wal_grows(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    process = await planted(cluster).start()
    async with loaded(process) as client:
        await until(lambda: restarts_of_wal(process) >= 1, lambda: process.log)
        child = office_pid(process.pid)
        (process.folder / STOP).touch()
        await until((process.folder / STOPPED).exists)
        await until(lambda: not is_alive(child), lambda: process.log)
        assert "the journal's WAL cannot be restarted" in process.log, process.log
        restarts = restarts_of_wal(process)
        await until_accepted(client, 50)
        await until(lambda: restarts_of_wal(process) > restarts, lambda: process.log)
        await until_health(session, process, None)
    assert wal_bytes(process) < WAL_BYTES_MAX
    await check_books(session, process)
    assert process.stop() == 0


async def test_a_back_office_that_is_slow_or_cannot_write_delays_no_order(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    process = await planted(cluster).start()
    child = office_pid(process.pid)
    async with loaded(process) as client:
        (process.folder / SLOW).touch()
        restarts = restarts_of_wal(process)
        await until_accepted(client, 100)
        # The reads are slow, and still end.
        await until(lambda: restarts_of_wal(process) > restarts, lambda: process.log)
        (process.folder / SLOW).unlink()
        (process.folder / FULL).touch()
        await until_accepted(client, 100)

        async def is_degraded() -> bool:
            return bool((await checks(session, process))["books"] == "degraded")

        await until(is_degraded, lambda: process.log, pause_seconds=0.1)
        order_id = await place(session, process, body=MARKET)

        async def is_filled() -> bool:
            return bool((await get(session, process, f"/orders/{order_id}"))["status"] == "FILLED")

        await until(is_filled, lambda: process.log)
        (process.folder / FULL).unlink()
    await check_books(session, process)
    assert office_pid(process.pid) == child
    assert process.stop() == 0
