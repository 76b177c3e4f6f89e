"""The database dies under load and comes back: the process continues, and its acknowledgements hold."""

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.evidence import tool_settings
from tests.support.exactly_once import check_acknowledged
from tests.support.load import LoadClient, check_ends, until_sending
from tests.support.orders import until_all_final
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.process import run_command


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of its own, because the test kills it."""
    with PostgresServer() as started:
        yield started


async def test_a_database_killed_under_load_loses_no_acknowledged_order(
    server: PostgresServer, cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    process = await cluster.process(SWITCHYARD_DATABASE_URL=server.create_database()).start()
    client = LoadClient(process)
    for _ in range(2):
        stop = asyncio.Event()
        load = asyncio.create_task(client.load(stop))
        before = len(client.acknowledged)
        await until(lambda before=before: len(client.acknowledged) > before + 50)  # type: ignore[misc]
        await until_sending(process)
        server.kill()
        await until(lambda: bool(client.unknown))
        stop.set()
        server.start()
        await load
    await client.insist(list(client.unknown))
    orders = await until_all_final(session, process)
    check_acknowledged(client, orders)
    check_ends(orders)
    assert process.stop() == 0


async def test_a_process_stopped_under_load_finishes_its_sends_and_exits_with_zero(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    process = await cluster.process().start()
    client = LoadClient(process)
    stop = asyncio.Event()
    load = asyncio.create_task(client.load(stop))
    await until(lambda: len(client.acknowledged) > 100)
    await until_sending(process)
    assert await asyncio.to_thread(process.stop) == 0
    stop.set()
    await load
    # The process waited for every send that had begun, so nothing is left to recover.
    for status in ("sending", "uncertain"):
        left = run_command("outbox", "list", "--status", status, "--json", **tool_settings(process))
        assert left.stdout == "[]\n", left.stdout + left.stderr
    await process.start()
    await client.insist(list(client.unknown))
    orders = await until_all_final(session, process)
    check_acknowledged(client, orders)
    check_ends(orders)
