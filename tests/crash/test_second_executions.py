"""Long ways to a second execution: through an older database, and through a sender paused during a restart."""

import asyncio
import signal
from collections.abc import Iterator

import aiohttp
import pytest

from tests.support.backups import SqliteBackup, declare_restored
from tests.support.cluster import Cluster
from tests.support.dying import BOUNDARY_REACHED, pausing_command
from tests.support.evidence import audit_lines
from tests.support.exactly_once import settled
from tests.support.hop_proxy import hop_proxy
from tests.support.load import LoadClient
from tests.support.orders import place, until_statuses
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.upgraded import upgraded_database

KEYS = [f"key-{number}" for number in range(1, 11, 2)]
# A price far from the market: the order stays open and causes no report.
RESTING = 1
MARKETABLE = 1000
# As many as a process sends that has long begun to read, if it does not wait; it waits for longer than they take.
PROBES = 3
# How a process reads what happened at the venue before it sends.
READS = b"GET /reports", b"GET /orders?open"
STUCK = {"OUTBOX_STUCK_THRESHOLD_MIN": "0.01", "VENUE_WINDOW_SEC_SIM": "1"}


@pytest.mark.parametrize("dedupe", ["open_only", "none"])
async def test_a_key_that_a_restored_database_has_lost_is_not_executed_again(
    dedupe: str, cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker = cluster.broker(dedupe=dedupe)
    process = cluster.process(**broker.client_settings(VENUE_SWEEP_SEC_SIM="1"))
    backup = SqliteBackup(cluster.folder)
    await asyncio.gather(broker.start(), process.start())
    assert process.stop() == 0
    backup.take()
    await process.start()
    await LoadClient(process).insist(KEYS)
    await settled(process, broker)
    assert process.stop() == 0
    backup.restore()
    assert declare_restored(process)["epoch"] == 2
    await process.start()
    # An earlier repeat would be matched with the reports, which are read again, and end as filled.
    await until(lambda: sum(line["type"] == "ReportUnmatched" for line in audit_lines(process)) == len(KEYS))
    await LoadClient(process).insist(KEYS)  # a client repeats the orders that it no longer finds
    # The filed reports are applied to the orders that exist now.
    await until_statuses(session, process, "FILLED")
    assert set(broker.orders().values()) == {1}, "the venue accepted a client order id twice"


async def test_an_order_that_only_a_lookup_shows_is_not_executed_again_after_a_restore(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker = await cluster.broker(dedupe="open_only").start()
    backup = SqliteBackup(cluster.folder)
    process = await cluster.process(**broker.client_settings(VENUE_WINDOW_SEC_SIM="1")).start()
    assert process.stop() == 0
    backup.take()
    await process.start()
    await broker.set_faults(drop_reports=1)  # filled, so not among the open orders either
    await LoadClient(process).insist(KEYS[:1])
    await until(lambda: len(broker.orders()) == 1)
    process.kill()
    backup.restore()
    declare_restored(process)
    await process.start()
    await LoadClient(process).insist(KEYS[:1])
    await until_statuses(session, process, "FILLED")
    assert set(broker.orders().values()) == {1}, "the venue accepted a client order id twice"


@pytest.mark.parametrize(("dedupe", "lookup", "price"), [("none", "none", RESTING), ("open_only", "open", MARKETABLE)])
async def test_a_key_that_a_restore_has_lost_is_in_doubt_where_its_venue_cannot_tell(
    dedupe: str, lookup: str, price: int, cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    """A resting order at a venue without a lookup, and a filled one whose lookup shows open orders only."""
    broker = cluster.broker("--lookup", "open", dedupe=dedupe, faults={"drop_reports": 1})
    process = cluster.process(**broker.client_settings(VENUE_LOOKUP_SIM=lookup, VENUE_WINDOW_SEC_SIM="1"))
    backup = SqliteBackup(cluster.folder)
    await asyncio.gather(broker.start(), process.start())
    assert process.stop() == 0
    backup.take()
    await process.start()
    await place(session, process, KEYS[0], price=price)
    await until(lambda: len(broker.orders()) == 1)
    process.kill()
    backup.restore()
    declare_restored(process)
    await process.start()
    await place(session, process, KEYS[0], price=price)
    [order] = await until_statuses(session, process, "UNKNOWN")
    # The worker sends: this order is without a key, so it repeats none.
    unkeyed = await place(session, process, price=RESTING)
    await until(lambda: broker.executions()[unkeyed] == 1, lambda: process.log)
    assert not broker.executions()[order["orderId"]]
    assert set(broker.orders().values()) == {1}, "the venue accepted a client order id twice"


async def test_a_request_of_the_lost_history_that_arrives_after_a_restore_is_not_executed_again(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker = await cluster.broker(dedupe="open_only").start()
    backup = SqliteBackup(cluster.folder)
    async with hop_proxy(broker.port) as proxy:
        settings = broker.client_settings(VENUE_URL_SIM=proxy.url, VENUE_WINDOW_SEC_SIM="1", VENUE_HOP_HOLD_SEC_SIM="5")
        process = await cluster.process(**settings).start()
        assert process.stop() == 0
        backup.take()
        await process.start()
        proxy.hold(b"POST /orders ")
        await LoadClient(process).insist(KEYS[:1])
        await until(lambda: proxy.waiting == 1)
        process.kill()
        backup.restore()
        declare_restored(process)
        before = len(proxy.requests)

        def reached(*starts: bytes) -> int:
            return sum(request.startswith(starts) for request in proxy.requests[before:])

        await process.start()
        await LoadClient(process).insist(KEYS[:1])
        # While it waits, only probes reach the venue: what it read now would not have the order that is on its way.
        await until(lambda: reached(b"GET /orders/probe-") >= PROBES or bool(reached(*READS, b"POST /orders ")))
        assert not reached(*READS, b"POST /orders "), "it did not wait"
        assert "venue_waits_after_restore" in process.log
        proxy.release()
        await until_statuses(session, process, "FILLED")
    assert set(broker.orders().values()) == {1}, "the venue accepted a client order id twice"


async def test_while_the_reports_of_a_restored_venue_fail_no_lost_key_is_sent(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker = cluster.broker(dedupe="none")
    process = cluster.process(**broker.client_settings())
    backup = SqliteBackup(cluster.folder)
    await asyncio.gather(broker.start(), process.start())
    assert process.stop() == 0
    backup.take()
    await process.start()
    await LoadClient(process).insist(KEYS)
    await settled(process, broker)
    assert process.stop() == 0
    backup.restore()
    assert declare_restored(process)["epoch"] == 2
    await broker.set_faults(reports_5xx=1)
    await process.start()
    await LoadClient(process).insist(KEYS)
    await until(lambda: "venue_not_synced" in process.log or max(broker.orders().values()) > 1)
    await broker.clear_faults()
    # The reports come first and settle the repeated keys.
    await until_statuses(session, process, "FILLED")
    assert set(broker.orders().values()) == {1}, "an error counted as an empty page of reports"


async def test_a_key_whose_order_is_open_at_the_venue_and_lost_here_is_not_executed_again(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker = cluster.broker(dedupe="none")
    process = cluster.process(**broker.client_settings(VENUE_LOOKUP_SIM="open"))
    backup = SqliteBackup(cluster.folder)
    await asyncio.gather(broker.start(), process.start())
    assert process.stop() == 0
    backup.take()
    await process.start()
    for key in KEYS:
        await place(session, process, key, price=RESTING)
    await until_statuses(session, process, "WORKING")
    assert process.stop() == 0
    backup.restore()
    assert declare_restored(process)["epoch"] == 2
    await process.start()
    await until(lambda: process.log.count("venue_order_unknown") == len(KEYS))
    for key in KEYS:
        await place(session, process, key, price=RESTING)
    await until_statuses(session, process, "WORKING")
    assert set(broker.orders().values()) == {1}, "the venue accepted a client order id twice"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of its own, because the test restarts it."""
    with PostgresServer() as started:
        yield started


async def test_a_sender_paused_during_a_restart_of_the_database_sends_nothing(
    cluster: Cluster, server: PostgresServer
) -> None:
    broker = cluster.broker(dedupe="open_only")
    settings = broker.client_settings(**STUCK, SWITCHYARD_DATABASE_URL=await upgraded_database(server))
    gateway = cluster.process("gateway", "gateway", **settings)
    paused, survivor = (cluster.process("worker", name, **settings) for name in ("paused", "survivor"))
    paused.command = pausing_command("after_the_attempt_is_committed")
    await asyncio.gather(broker.start(), gateway.start())
    await LoadClient(gateway).insist(KEYS)
    paused.spawn()
    await until(lambda: BOUNDARY_REACHED in paused.log)
    server.stop()  # ends its session, and with it the lock that shows that the worker is alive
    server.start()
    await survivor.start()
    await until(lambda: len(broker.orders()) == len(KEYS))
    paused.send(signal.SIGCONT)
    assert paused.stop() == 0  # it has sent everything that it was going to send
    broker.check_nothing_twice()
