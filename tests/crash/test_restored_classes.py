"""An older database is restored: the process detects it before it sends, and no order is executed twice."""

import asyncio
from collections import Counter

import aiohttp
import pytest

from tests.support.backups import PostgresBackup, SqliteBackup, declare_restored
from tests.support.cluster import Cluster
from tests.support.dying import dying_command
from tests.support.evidence import audit_lines, tool_settings
from tests.support.exactly_once import CLASSES, check_executions, settled
from tests.support.load import LoadClient
from tests.support.orders import Snapshot, place, until_statuses
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_command
from tests.support.venue_process import VenueProcess

KEPT = 200
RESTING = 10
# Odd numbers are orders that may wait: each of them is executed before the older database is restored.
KEYS = [f"key-{number}" for number in range(1, 600, 2)]


class BackedUpProcess:
    """A process with its own venue, and a backup of its database."""

    def __init__(self, cluster: Cluster, dedupe: str, server: PostgresServer | None) -> None:
        self.broker: VenueProcess = cluster.broker(dedupe=dedupe)
        settings = {"SWITCHYARD_DATABASE_URL": server.create_database()} if server else {}
        self.process: Process = cluster.process(**settings, **self.broker.client_settings())
        self.backup = (
            PostgresBackup(server, settings["SWITCHYARD_DATABASE_URL"]) if server else SqliteBackup(cluster.folder)
        )


@pytest.fixture
def backed_up(cluster: Cluster, postgres_server: PostgresServer) -> list[BackedUpProcess]:
    """SQLite with each class of venue, and PostgreSQL with one."""
    on_sqlite = [BackedUpProcess(cluster.within(dedupe), dedupe, None) for dedupe in CLASSES]
    return [*on_sqlite, BackedUpProcess(cluster.within("postgres"), "open_only", postgres_server)]


async def test_a_database_from_before_the_last_hundred_orders_executes_nothing_twice(
    backed_up: list[BackedUpProcess],
) -> None:
    await asyncio.gather(*map(finished_and_unfinished_rows, backed_up))


async def test_an_order_that_rests_at_the_venue_is_looked_up_and_not_sent_again(
    backed_up: list[BackedUpProcess],
) -> None:
    await asyncio.gather(*map(resting_orders, backed_up))


async def finished_and_unfinished_rows(backed_up: BackedUpProcess) -> None:
    process, broker = backed_up.process, backed_up.broker
    client = LoadClient(process)
    # It dies during its sends: the backup has rows that are sent, being sent and queued, and no final order.
    command, process.command = process.command, dying_command("after_the_answer")
    await process.start()
    await client.insist(KEYS[:KEPT])
    await broker.start()
    await until(lambda: not process.is_running)
    backed_up.backup.take()
    process.command = command
    await process.start()
    await client.insist(KEYS[KEPT:])
    await settled(process, broker)
    assert await asyncio.to_thread(process.stop) == 0

    backed_up.backup.restore()
    before = broker.check_nothing_twice()
    process.spawn()
    assert await asyncio.to_thread(process.wait) == 4
    assert "switchyard db restored" in process.log
    declared = await asyncio.to_thread(declare_restored, process)
    assert declared["epoch"] == 2
    assert declared["rows"] > KEPT // 2

    await process.start()
    orders = await settled(process, broker)
    assert check_executions(broker, orders) == before, "an order was executed because of the restore"
    await check_lost_orders(process, orders, client, before)
    verified = await asyncio.to_thread(run_command, "audit", "verify", **tool_settings(process))
    assert verified.returncode == 0, verified.stderr


async def resting_orders(backed_up: BackedUpProcess) -> None:
    process, broker = backed_up.process, backed_up.broker
    await process.start()
    async with aiohttp.ClientSession() as session:
        for number in range(RESTING):
            await place(session, process, f"resting-{number}", price=1)
        process.kill()  # the venue is not running yet: in the backup nothing was sent
        backed_up.backup.take()
        await broker.start()
        await process.start()
        await until_statuses(session, process, "WORKING")
        assert await asyncio.to_thread(process.stop) == 0

        backed_up.backup.restore()
        declared = await asyncio.to_thread(declare_restored, process)
        assert declared["rows"] == RESTING
        await process.start()
        # When the order without a key is filled, the worker has begun to send the orders that it considers due. The
        # other one has a key that the restore may have lost: where nothing can tell, it stays in doubt.
        keyed = await place(session, process, "afterwards", price=1000)
        await place(session, process, price=1000)
        # A resting order causes no reports, so where there is no lookup either it stays in doubt.
        await until_statuses(session, process, "UNKNOWN" if broker.dedupe == "none" else "WORKING", "FILLED")
    assert await asyncio.to_thread(process.stop) == 0
    executions = broker.check_nothing_twice()
    assert executions[keyed] == (0 if broker.dedupe == "none" else 1)
    assert len(executions) == RESTING + 1 + executions[keyed]


async def check_lost_orders(
    process: Process, orders: list[Snapshot], client: LoadClient, executions: Counter[str]
) -> None:
    """Assert that the restored orders agree with the venue, and that each fill of a lost one is an unmatched report."""
    for order in orders:
        assert (order["status"] == "FILLED") == (executions[order["orderId"]] == 1)
    lost = set(client.acknowledged.values()) - {order["orderId"] for order in orders}
    assert len(lost) == len(KEYS) - KEPT
    lost_fills = sum(executions[order_id] for order_id in lost)
    assert lost_fills == len(lost)
    # The audit file follows the journal with a delay.
    await until(lambda: unmatched_reports(process) >= lost_fills)
    assert unmatched_reports(process) == lost_fills


def unmatched_reports(process: Process) -> int:
    return sum(line["type"] == "ReportUnmatched" for line in audit_lines(process))
