"""The database dies under load and comes back: the process goes on by itself, and its answers were true."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.evidence import tool_settings
from tests.support.exactly_once import check_acknowledged
from tests.support.load import Client, all_final, check_ends, in_mid_send
from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_command, until


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of its own, since this one is going to be killed."""
    with PostgresServer() as started:
        yield started


async def test_a_database_killed_under_load_costs_no_acknowledged_order(server: PostgresServer, tmp_path: Path) -> None:
    process = await Process(tmp_path, SWITCHYARD_DATABASE_URL=server.create_database()).start()
    try:
        client = Client(process)
        for _ in range(2):
            stop = asyncio.Event()
            load = asyncio.create_task(client.load(stop))
            before = len(client.acknowledged)
            await until(lambda before=before: len(client.acknowledged) > before + 50)  # type: ignore[misc]
            await in_mid_send(process)
            server.kill()
            await until(lambda: bool(client.unknown))
            stop.set()
            server.start()
            await load
        await client.insist(list(client.unknown))
        async with aiohttp.ClientSession() as session:
            orders = await all_final(session, process)
        check_acknowledged(client, orders)
        check_ends(orders)
        assert process.stop() == 0
    finally:
        process.close()


async def test_a_process_told_to_stop_under_load_finishes_what_it_has_and_exits_with_zero(tmp_path: Path) -> None:
    process = await Process(tmp_path).start()
    try:
        client = Client(process)
        stop = asyncio.Event()
        load = asyncio.create_task(client.load(stop))
        await until(lambda: len(client.acknowledged) > 100)
        await in_mid_send(process)
        assert await asyncio.to_thread(process.stop) == 0
        stop.set()
        await load
        # Every send that had begun was brought to its end: nothing is left for a recovery.
        for status in ("sending", "uncertain"):
            left = run_command("outbox", "list", "--status", status, "--json", **tool_settings(process))
            assert left.stdout == "[]\n", left.stdout + left.stderr
        await process.start()
        await client.insist(list(client.unknown))
        async with aiohttp.ClientSession() as session:
            orders = await all_final(session, process)
        check_acknowledged(client, orders)
        check_ends(orders)
    finally:
        process.close()
