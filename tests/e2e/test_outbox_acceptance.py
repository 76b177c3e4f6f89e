"""The acceptance criteria of the outbox specification (seed 002, section 13), with a broker in its own process."""

import asyncio
import json

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.orders import get, place, until_statuses
from tests.support.process import Process, run_command
from tests.support.venue_process import VenueProcess


@pytest.fixture
async def broker(cluster: Cluster) -> VenueProcess:
    return await cluster.broker().start()


@pytest.fixture
async def switchyard(broker: VenueProcess, cluster: Cluster) -> Process:
    return await cluster.process(**broker.client_settings()).start()


async def test_ten_requests_with_one_key_are_one_send(
    session: aiohttp.ClientSession, switchyard: Process, broker: VenueProcess
) -> None:
    ids = await asyncio.gather(*(place(session, switchyard, "same") for _ in range(10)))
    await until_statuses(session, switchyard, "FILLED")
    assert len(set(ids)) == 1
    assert broker.executions() == {ids[0]: 1}


async def test_a_failing_broker_is_tried_again_with_backoff_until_it_accepts(
    session: aiohttp.ClientSession, switchyard: Process, broker: VenueProcess
) -> None:
    await broker.set_faults(refused_5xx=1.0)
    order_id = await place(session, switchyard, "patient")
    await until_statuses(session, switchyard, "UNKNOWN")
    await broker.set_faults(refused_5xx=0.0)
    await until_statuses(session, switchyard, "FILLED")
    assert broker.executions() == {order_id: 1}
    events = await get(session, switchyard, f"/orders/{order_id}/events")
    rows = [row for event in events["events"] for row in event["data"].get("outbox", [])]
    assert [row["attempt"] for row in rows if row["status"] == "sending"] == [1, 2]
    assert [row["lastError"] for row in rows if row["status"] == "failed"] == ["BROKER_5XX"]


async def test_a_documented_rejection_is_dead_at_once(
    session: aiohttp.ClientSession, switchyard: Process, broker: VenueProcess
) -> None:
    await broker.set_faults(reject=1.0)
    order_id = await place(session, switchyard, "poison")
    [order] = await until_statuses(session, switchyard, "REJECTED")
    assert order["reason"].startswith("BAD_REQUEST")
    [dead] = json.loads(run_command("outbox", "list", "--status", "dead", "--json", **switchyard.settings).stdout)
    assert (dead["id"], dead["row"]["attempt"]) == (order_id, 1)
    assert not broker.executions()


async def test_a_send_is_counted_in_the_metrics(session: aiohttp.ClientSession, switchyard: Process) -> None:
    await place(session, switchyard, "seen")
    await until_statuses(session, switchyard, "FILLED")
    async with session.get(f"{switchyard.url}/metrics") as response:
        text = await response.text()
    for name in (
        'outbox_dequeue_total{result="success"}',
        'outbox_send_total{outcome="success"} 1.0',
        "outbox_inflight 0.0",
        "outbox_lag_seconds",
        'outbox_retry_count_bucket{le="0.0"} 1.0',
        "outbox_uncertain 0.0",
        "outbox_stale_writes_total 0.0",
    ):
        assert name in text
