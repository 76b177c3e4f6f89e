"""Rechecks over separate processes on PostgreSQL: a gateway accepts them, the process with the books does the work."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from switchyard.adapters.pdca.store import SqlPdcaStore
from switchyard.adapters.system_clock import SystemClock
from switchyard.domain.strategies.registry import StrategyBody
from switchyard.domain.strategies.requests import RecheckItem
from tests.support.books import KEEPS_BOOKS
from tests.support.cluster import Cluster
from tests.support.figures import scrape
from tests.support.kafka import bus_settings, start_kafka
from tests.support.orders import until_all_final
from tests.support.pdca import a_recheck, strategy_key
from tests.support.polling import until
from tests.support.process import run_command

STRATEGY = "trend.h1"
COMMAND_REQUEST = "01J8TPZ7YJ1E1X4C5N9ZP3M3QC"


@pytest.fixture
def bus() -> Iterator[dict[str, str]]:
    """The settings of a Kafka with a topic."""
    kafka = start_kafka()
    yield bus_settings(kafka.bootstrap, kafka.create_topic())
    kafka.remove()


async def test_a_gateway_accepts_a_recheck_and_the_process_with_the_books_or_a_command_carries_it_out(
    cluster: Cluster, session: aiohttp.ClientSession, database_url: str, bus: dict[str, str]
) -> None:
    """The books read Kafka, whose offsets say nothing about the journal's events."""
    settings = {"SWITCHYARD_DATABASE_URL": database_url, **bus}
    gateway = cluster.process("gateway", "gateway", **settings)
    worker = cluster.process("worker", "worker", **settings)
    office = cluster.process("backoffice", "office", **settings)
    for process in (gateway, worker):
        await process.start()
    office.spawn()
    order = {"symbol": "USDJPY", "type": "MARKET", "qty": 1000, "strategy": STRATEGY}
    for side in ("BUY", "SELL"):
        headers = gateway.headers()
        async with session.post(f"{gateway.url}/orders", json={**order, "side": side}, headers=headers) as response:
            assert response.status == 202, await response.text()
    await until_all_final(session, gateway)

    token = await asyncio.to_thread(
        run_command, "token", "--aud", "pdca", "--aud", "pdca.gui", "--scope", "pdca:recheck", "--scope", "pdca:read",
        **gateway.settings,
    )  # fmt: skip
    headers = {"Authorization": f"Bearer {token.stdout.strip()}", "Idempotency-Key": "k-1"}
    body = {"strategies": [STRATEGY], "window": {"lookback_days": 2}, "reason": "manual"}
    request_id = ""

    async def is_accepted() -> bool:  # the registry learns of the strategy from the journal
        nonlocal request_id
        async with session.post(f"{gateway.url}/pdca/recheck", json=body, headers=headers) as response:
            shown = await response.json()
            request_id = shown.get("request_id", "")
            assert response.status in (202, 404), shown
            return response.status == 202

    await until(is_accepted, pause_seconds=0.6)
    shown: dict[str, Any] = {}

    async def has_ended() -> bool:
        nonlocal shown
        async with session.get(f"{gateway.url}/pdca/recheck/{request_id}", headers=headers) as response:
            shown = await response.json()
        return shown["state"] not in ("queued", "running")

    await until(has_ended, lambda: office.log[-2000:], pause_seconds=0.2)
    [item] = shown["items"]
    assert (shown["state"], item["metrics"]["win_rate"]["reason"]) == ("succeeded", None), item
    assert item["metrics"]["fees"]["unit"] == "JPY"

    # A request of another runner: nobody works on it until its command does, beside the live processes.
    store = await SqlPdcaStore.on_postgres(database_url)
    try:
        request = msgspec.structs.replace(
            a_recheck(COMMAND_REQUEST, created_at=SystemClock().now(), runner="airflow"), metrics=("win_rate",)
        )
        await store.create(request, "k-2", "digest", [STRATEGY])
        done = await asyncio.to_thread(run_command, "pdca", "run", COMMAND_REQUEST, **gateway.settings)
        assert (done.returncode, "1 of 1 strategies rechecked" in done.stdout) == (0, True), done.stderr
        again = await asyncio.to_thread(run_command, "pdca", "run", COMMAND_REQUEST, **gateway.settings)
        assert again.stdout == done.stdout
        page = await store.items(COMMAND_REQUEST, 0, 10)
        assert page is not None and [each.attempts for each in page.items] == [1]
        assert page.items[0].result is not None
        assert page.items[0].result.metrics["win_rate"].value is not None
        # Nobody scrapes the command: the gateway counts what the store says, by whoever it was carried out.
        assert (await scrape(session, gateway.url))["pdca_rechecks_total{succeeded}"] == 2
    finally:
        await store.close()
    missing = await asyncio.to_thread(run_command, "pdca", "run", "01J8TPZ7YJ1E1X4C5N9ZP3M3QD", **gateway.settings)
    assert (missing.returncode, "was not found" in missing.stderr) == (1, True)


async def test_on_sqlite_the_command_works_through_the_server_and_without_one(cluster: Cluster) -> None:
    process = cluster.process(name="office", **KEEPS_BOOKS)
    await process.start()
    store = await SqlPdcaStore.on_file(Path(process.settings["SWITCHYARD_DATA_DIR"]) / "pdca.db")

    async def carried_out(request_id: str) -> RecheckItem:
        request = a_recheck(request_id, created_at=SystemClock().now(), runner="airflow")
        await store.create(request, request_id, "digest", [STRATEGY])
        done = await asyncio.to_thread(run_command, "pdca", "run", request_id, "--json", **process.settings)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["progress"]["total"] == 1
        page = await store.items(request_id, 0, 10)
        assert page is not None
        return page.items[0]

    try:
        await store.put_strategy(strategy_key(STRATEGY), StrategyBody(), SystemClock().now())
        by_server = await carried_out("01J8TPZ7YJ1E1X4C5N9ZP3M3Q1")
        assert by_server.result is not None and by_server.attempts == 1
        assert "strategy_rechecked" in process.log  # in the server, which holds the files
        process.stop()
        assert (await carried_out("01J8TPZ7YJ1E1X4C5N9ZP3M3Q2")).result is not None
        # A server without books says so, instead of leaving the recheck in the queue for ever.
        process.settings["SWITCHYARD_BACKOFFICE"] = "false"
        await process.start()
        without = await carried_out("01J8TPZ7YJ1E1X4C5N9ZP3M3Q3")
        assert without.error is not None and without.error.code == "BOOKS_HALTED"
        assert "SWITCHYARD_BACKOFFICE=false" in without.error.message
    finally:
        await store.close()
