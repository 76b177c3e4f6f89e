"""SIGKILL at each boundary of a send, in each class of venue, over hundreds of orders."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.dying import BOUNDARIES, BOUNDARY_REACHED, dying_command
from tests.support.evidence import audit_lines, check_audit
from tests.support.exactly_once import (
    UNREPORTED,
    UNSWEPT,
    check_acknowledged,
    check_executions,
    in_every_class,
    settled,
)
from tests.support.load import LoadClient
from tests.support.orders import Snapshot
from tests.support.planted import planted_command
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.process import COMMAND, Process
from tests.support.upgraded import upgraded_database
from tests.support.venue_process import VenueProcess

DEATHS = 2
# More than the slots of a worker times the deaths: every process has orders left to send.
ORDERS = 200
# Odd numbers are orders that may wait: each of them is sent, however often the sender dies.
KEYS = [f"key-{number}" for number in range(1, 2 * ORDERS, 2)]
# The simulator accepts an order at once, so a short acceptance window is enough; and a worker has 32 slots.
COMMON = {"VENUE_WINDOW_SEC_SIM": "1", "OUTBOX_BATCH_SIZE": "8", "OUTBOX_PARALLELISM": "4"}
# The boundaries at which the venue has the order in hand.
AFTER_THE_BYTES_LEFT = ("after_the_request_left", "after_the_answer", "before_the_outcome_is_written")

each_boundary = pytest.mark.parametrize("boundary", list(BOUNDARIES))


@each_boundary
async def test_a_worker_that_dies_at_a_boundary_executes_nothing_twice_and_loses_nothing(
    boundary: str, cluster: Cluster, postgres_server: PostgresServer
) -> None:
    async def scenario(dedupe: str) -> None:
        await worker_dies(boundary, dedupe, cluster.within(dedupe), postgres_server)

    await in_every_class(scenario)


@each_boundary
async def test_a_single_process_on_sqlite_that_dies_at_a_boundary_executes_nothing_twice_and_loses_nothing(
    boundary: str, cluster: Cluster
) -> None:
    async def scenario(dedupe: str) -> None:
        inner = cluster.within(dedupe)
        await process_dies(boundary, inner, inner.broker(dedupe=dedupe), survivor=[str(COMMAND)])

    await in_every_class(scenario)


@pytest.mark.parametrize("dedupe", ["open_only", "none"])
async def test_the_harness_detects_a_survivor_that_sends_again_without_asking(dedupe: str, cluster: Cluster) -> None:
    broker = cluster.broker(dedupe=dedupe, faults=UNREPORTED)
    with pytest.raises(AssertionError, match="the venue accepted a client order id twice"):
        await process_dies("after_the_answer", cluster, broker, survivor=planted_command("blind_requeue"), **UNSWEPT)


async def worker_dies(boundary: str, dedupe: str, cluster: Cluster, postgres_server: PostgresServer) -> None:
    """Workers die at the boundary, then two start at the same time and recover their sends."""
    broker = cluster.broker(dedupe=dedupe)
    settings = broker.client_settings(**COMMON, SWITCHYARD_DATABASE_URL=await upgraded_database(postgres_server))
    gateway = cluster.process("gateway", "gateway", **settings)
    dying, *recoverers = (cluster.process("worker", name, **settings) for name in ("dying", "first", "second"))
    dying.command = dying_command(boundary)
    await asyncio.gather(broker.start(), gateway.start())
    client = LoadClient(gateway)
    await client.insist(KEYS)
    for _ in range(DEATHS):
        dying.spawn()
        await until_dead(dying, boundary, broker)
    await asyncio.gather(*(recoverer.start() for recoverer in recoverers))
    orders = await settled(gateway, broker)
    for process in (*recoverers, gateway):
        # A stopped process has finished its sends and written its audit file.
        assert await asyncio.to_thread(process.stop) == 0
    check(boundary, broker, orders, client, audit_lines(gateway))


async def process_dies(
    boundary: str, cluster: Cluster, broker: VenueProcess, *, survivor: list[str], **settings: str
) -> None:
    """A single process on SQLite dies at the boundary several times and starts again."""
    process = cluster.process(**broker.client_settings(**COMMON, **settings))
    process.command = dying_command(boundary)
    client = LoadClient(process)
    await process.start()
    # Half of the orders are accepted before the venue starts, so that the process has many to send at once;
    # the others arrive while it dies and starts again.
    await client.insist(KEYS[: ORDERS // 2])
    posting = asyncio.create_task(client.insist(KEYS[ORDERS // 2 :]))
    await broker.start()
    await until_dead(process, boundary, broker)
    for _ in range(DEATHS - 1):
        process.spawn()
        await until_dead(process, boundary, broker)
    process.command = survivor
    await process.start()
    await posting
    orders = await settled(process, broker)
    if broker.dedupe == "forever":  # what the class of the venue changes is below, not in the audit file
        await check_audit(process, cluster.folder)
    else:
        assert await asyncio.to_thread(process.stop) == 0
    check(boundary, broker, orders, client, audit_lines(process))


async def until_dead(process: Process, boundary: str, broker: VenueProcess) -> None:
    """Wait until it has died, and check that it died at the boundary."""
    await until(lambda: not process.is_running, lambda: process.log)
    assert process.wait() == -9, process.log
    in_hand = process.log.rpartition(BOUNDARY_REACHED)[2].split()[0]
    if boundary in AFTER_THE_BYTES_LEFT:
        await until(lambda: in_hand in broker.orders())


def check(
    boundary: str, broker: VenueProcess, orders: list[Snapshot], client: LoadClient, lines: list[dict[str, Any]]
) -> None:
    check_acknowledged(client, orders)
    assert len(orders) == ORDERS
    executions = check_executions(broker, orders)
    in_doubt = {order["orderId"] for order in orders if order["status"] == "UNKNOWN"}
    assert set(executions) == {order["orderId"] for order in orders} - in_doubt
    if broker.dedupe != "none":
        assert not in_doubt
    elif boundary == "after_the_attempt_is_committed":
        assert len(in_doubt) >= DEATHS, "an order in hand at a death was neither executed nor left in doubt"
    check_resends(broker.dedupe, lines, in_doubt)


def check_resends(dedupe: str, lines: list[dict[str, Any]], in_doubt: set[str]) -> None:
    """Assert that no order was sent again while it was in doubt, except at a venue with permanent deduplication.

    In class B the doubt ends by a lookup, and in class C it does not end here; a refused connection causes none. No row
    of an order that is still in doubt waits to be sent, and no attempt was recovered by two workers.
    """
    before: dict[str, tuple[str, dict[str, Any]]] = {}
    attempts: Counter[str] = Counter()
    recovered: Counter[tuple[str, int]] = Counter()
    for line in lines:
        for row in line["data"].get("outbox", ()):
            attempts[line["orderId"]] = row.get("attempt", attempts[line["orderId"]])
            if row["status"] == "sending" and row["attempt"] > 1 and dedupe != "forever":
                status, earlier = before[line["orderId"]]
                assert status != "UNKNOWN", f"sent again in doubt: {line}"
                assert dedupe != "none" or earlier.get("lastError") != "ABSENT_AT_VENUE", f"no lookup exists: {line}"
            recovered[line["orderId"], attempts[line["orderId"]]] += line["type"] == "OrderUncertain"
            before[line["orderId"]] = (line["data"]["order"]["status"], row)
    assert max(recovered.values()) == 1, "no attempt was recovered, or one of them twice"
    assert {before[order_id][1]["status"] for order_id in in_doubt} <= {"uncertain"}
