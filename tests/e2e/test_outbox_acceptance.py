"""The outbox specification's acceptance criteria (seed 002 section 13), against a broker in a process of its own."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.load import pages
from tests.support.process import Process, run_command, until
from tests.support.simulator import Simulator, venue_settings

ORDER = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "price": 1000, "timeInForce": "GTC", "qty": 1000}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Simulator]:
    simulator = Simulator(tmp_path / "venue", "forever")
    await simulator.start()
    yield simulator
    simulator.close()


@pytest.fixture
async def switchyard(broker: Simulator, tmp_path: Path) -> AsyncIterator[Process]:
    process = await Process(tmp_path, **venue_settings("forever", broker)).start()
    yield process
    process.close()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


async def place(session: aiohttp.ClientSession, switchyard: Process, key: str) -> str:
    headers = switchyard.headers(key=key)
    async with session.post(f"{switchyard.url}/orders", json=ORDER, headers=headers) as response:
        assert response.status == 202
        return str((await response.json())["orderId"])


async def until_status(session: aiohttp.ClientSession, switchyard: Process, status: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    async def reached() -> bool:
        found[:] = await pages(session, switchyard)
        return [order["status"] for order in found] == [status]

    await until(reached)
    return found[0]


async def test_ten_submissions_of_one_key_are_one_send(
    session: aiohttp.ClientSession, switchyard: Process, broker: Simulator
) -> None:
    ids = await asyncio.gather(*(place(session, switchyard, "same") for _ in range(10)))
    await until_status(session, switchyard, "FILLED")
    assert len(set(ids)) == 1
    assert broker.executions() == {ids[0]: 1}


async def test_a_broker_in_trouble_is_tried_again_with_backoff_until_it_succeeds(
    session: aiohttp.ClientSession, switchyard: Process, broker: Simulator
) -> None:
    await broker.set_faults(session, {"refused_5xx": 1.0})
    order_id = await place(session, switchyard, "patient")
    await until_status(session, switchyard, "UNKNOWN")
    await broker.set_faults(session, {"refused_5xx": 0.0})
    await until_status(session, switchyard, "FILLED")
    assert broker.executions() == {order_id: 1}
    events = await get(session, switchyard, f"/orders/{order_id}/events")
    rows = [row for event in events["events"] for row in event["data"].get("outbox", [])]
    assert [row["attempt"] for row in rows if row["status"] == "sending"] == [1, 2]
    assert [row["lastError"] for row in rows if row["status"] == "failed"] == ["BROKER_5XX"]


async def test_a_documented_rejection_is_dead_at_once(
    session: aiohttp.ClientSession, switchyard: Process, broker: Simulator
) -> None:
    await broker.set_faults(session, {"reject": 1.0})
    order_id = await place(session, switchyard, "poison")
    order = await until_status(session, switchyard, "REJECTED")
    assert order["reason"].startswith("BAD_REQUEST")
    [dead] = json.loads(run_command("outbox", "list", "--status", "dead", "--json", **switchyard.settings).stdout)
    assert (dead["id"], dead["row"]["attempt"]) == (order_id, 1)
    assert not broker.executions()


async def test_audit_and_metrics_tell_of_it(
    session: aiohttp.ClientSession, switchyard: Process, broker: Simulator
) -> None:
    await place(session, switchyard, "seen")
    await until_status(session, switchyard, "FILLED")
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


async def get(session: aiohttp.ClientSession, switchyard: Process, path: str) -> Any:
    async with session.get(switchyard.url + path, headers=switchyard.headers()) as response:
        assert response.status == 200
        return await response.json()
