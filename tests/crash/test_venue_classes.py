"""Processes are killed and responses lost: the venue's log has each order at most once, in every class of venue."""

import asyncio
from collections import Counter

import pytest

from tests.support.cluster import Cluster
from tests.support.exactly_once import UNREPORTED, UNSWEPT, check_executions, in_every_class, killed_under_load
from tests.support.orders import Snapshot
from tests.support.planted import planted_command
from tests.support.postgres import PostgresServer
from tests.support.upgraded import upgraded_database
from tests.support.venue_process import VenueProcess

# A worker that guesses has sent again by then: the first backoff and the acceptance window are two seconds each.
DOUBT_SECONDS = 4.0
FAULTS = {"drop_answer": 0.08, "accepted_5xx": 0.08, "refused_5xx": 0.05, "rate_limit": 0.01, "garbage": 0.04}
# A quarter of the sends fails. The breaker would close the venue for up to a minute at a time, and nothing be sent
# when the processes are killed.
UNBROKEN = {"VENUE_BREAKER_FAULTS_SIM": "0"}


async def test_a_single_process_on_sqlite_killed_under_load_executes_nothing_twice(cluster: Cluster) -> None:
    async def scenario(dedupe: str) -> None:
        inner = cluster.within(dedupe)
        broker = inner.broker(dedupe=dedupe, faults=FAULTS)
        process = inner.process(**broker.client_settings(**UNBROKEN))
        await asyncio.gather(broker.start(), process.start())
        orders = await killed_under_load(process, victim=process, broker=broker, doubt_seconds=DOUBT_SECONDS)
        assert await asyncio.to_thread(process.stop) == 0
        check(broker, orders)

    await in_every_class(scenario)


async def test_a_worker_on_postgresql_killed_under_load_executes_nothing_twice(
    cluster: Cluster, postgres_server: PostgresServer
) -> None:
    async def scenario(dedupe: str) -> None:
        inner = cluster.within(dedupe)
        settings = {"SWITCHYARD_DATABASE_URL": await upgraded_database(postgres_server)}
        broker = inner.broker(dedupe=dedupe, faults=FAULTS)
        gateway = inner.process("gateway", "gateway", **settings)
        worker = inner.process("worker", "worker", **settings, **broker.client_settings(**UNBROKEN))
        await asyncio.gather(*(process.start() for process in (broker, gateway, worker)))
        orders = await killed_under_load(gateway, victim=worker, broker=broker, doubt_seconds=DOUBT_SECONDS)
        assert await asyncio.to_thread(worker.stop) == 0
        check(broker, orders)

    await in_every_class(scenario)


@pytest.mark.parametrize(
    ("defect", "dedupe", "message"),
    [
        ("blind_requeue", "open_only", "the venue accepted a client order id twice"),
        ("blind_requeue", "none", "the venue accepted a client order id twice"),
        ("sent_before_sending", "forever", "counts as sent, and the venue does not have it"),
        ("doubt_is_rejection", "forever", "no one rejected or cancelled"),
    ],
)
async def test_the_harness_detects_a_planted_defect(defect: str, dedupe: str, message: str, cluster: Cluster) -> None:
    broker = await cluster.broker(dedupe=dedupe, faults={**FAULTS, **UNREPORTED}).start()
    process = cluster.process(**broker.client_settings(**UNSWEPT, **UNBROKEN))
    process.command = planted_command(defect)
    await process.start()
    with pytest.raises(AssertionError, match=message):
        await killed_under_load(process, victim=process, broker=broker)


def check(broker: VenueProcess, orders: list[Snapshot]) -> None:
    executions = check_executions(broker, orders)
    assert set(executions) <= {order["orderId"] for order in orders}, "the venue has an order that the gateway lacks"
    statuses = Counter(order["status"] for order in orders)
    assert statuses["FILLED"] > 100
    if broker.dedupe == "none":
        assert statuses["UNKNOWN"], "lost responses and no lookup must leave orders in doubt"
