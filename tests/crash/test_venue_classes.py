"""Processes die and answers get lost: the venue's own log shows each order at most once, in every class of venue."""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.load import FINAL, Client, pages
from tests.support.postgres import PostgresServer
from tests.support.process import DEADLINE_SECONDS, ROOT, Process, run_command, until
from tests.support.simulator import Simulator, venue_settings

ROUNDS = 3
# An order that was never sent does not move any more; this is how long the harness looks before it says so.
STUCK_SECONDS = 15.0
FAULTS = {"drop_answer": 0.08, "accepted_5xx": 0.08, "refused_5xx": 0.05, "rate_limit": 0.01, "garbage": 0.04}


@pytest.fixture(params=["forever", "open_only", "none"])
async def venue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, Simulator]]:
    simulator = Simulator(tmp_path / "venue", request.param, FAULTS)
    await simulator.start()
    yield request.param, simulator
    simulator.close()


async def test_the_whole_process_on_sqlite_killed_under_load_executes_nothing_twice(
    venue: tuple[str, Simulator], tmp_path: Path
) -> None:
    dedupe, simulator = venue
    process = Process(tmp_path, **venue_settings(dedupe, simulator))
    try:
        await process.start()
        orders = await killed_under_load(process, victim=process)
        check(dedupe, simulator, orders)
    finally:
        process.close()


async def test_a_worker_on_postgresql_killed_under_load_executes_nothing_twice(
    venue: tuple[str, Simulator], tmp_path: Path, postgres_server: PostgresServer
) -> None:
    dedupe, simulator = venue
    settings = {"SWITCHYARD_DATABASE_URL": postgres_server.create_database()}
    assert run_command("db", "upgrade", **settings).returncode == 0
    gateway = Process(tmp_path / "gateway", "gateway", **settings)
    worker = Process(tmp_path / "worker", "worker", **settings, **venue_settings(dedupe, simulator))
    try:
        await gateway.start()
        await worker.start()
        orders = await killed_under_load(gateway, victim=worker)
        check(dedupe, simulator, orders)
    finally:
        gateway.close()
        worker.close()


@pytest.mark.parametrize(
    ("bug", "dedupe", "shows_as", "seconds_max"),
    [
        ("blind_requeue", "open_only", "the venue took an order twice", DEADLINE_SECONDS),
        ("sent_before_sending", "forever", "waited in vain", STUCK_SECONDS),
        ("doubt_is_rejection", "forever", "was executed after all", DEADLINE_SECONDS),
        ("keys_are_forgotten", "forever", "stands for two orders", DEADLINE_SECONDS),
    ],
)
async def test_the_harness_fails_when_a_bug_is_planted(
    bug: str, dedupe: str, shows_as: str, seconds_max: float, tmp_path: Path
) -> None:
    # Late reports: an early one is evidence that would save even a worker that guesses.
    simulator = Simulator(tmp_path / "venue", dedupe, {**FAULTS, "late_reports": 4.0})
    process = Process(tmp_path, **venue_settings(dedupe, simulator), PYTHONPATH=str(ROOT))
    process.command = [sys.executable, "-m", "tests.support.planted", bug]
    try:
        await simulator.start()
        await process.start()
        with pytest.raises(AssertionError, match=shows_as):
            orders = await killed_under_load(process, victim=process, seconds_max=seconds_max)
            check(dedupe, simulator, orders)
    finally:
        process.close()
        simulator.close()


async def killed_under_load(
    gateway: Process, *, victim: Process, seconds_max: float = DEADLINE_SECONDS
) -> list[dict[str, Any]]:
    """Orders as they stand after some deaths, once nothing moves any more."""
    chance = random.Random(7)
    client = Client(gateway)
    for _ in range(ROUNDS):
        stop = asyncio.Event()
        load = asyncio.create_task(client.load(stop))
        before = len(client.acknowledged)
        await until(lambda before=before: len(client.acknowledged) > before + 60)  # type: ignore[misc]
        await asyncio.sleep(chance.uniform(0.0, 0.3))  # the moment of death is the one thing left to chance
        victim.kill()
        stop.set()
        await load
        await victim.start()
    async with aiohttp.ClientSession() as session:
        while client.unknown:
            for key in list(client.unknown):
                await client.post(session, key)
        for key in list(client.acknowledged)[:100]:
            await client.post(session, key)  # the same order again, or the client says so
        settled: list[dict[str, Any]] = []

        async def nothing_moves() -> bool:
            settled[:] = await pages(session, gateway)
            return all(order["status"] in FINAL or is_in_doubt(order, victim) for order in settled)

        await until(nothing_moves, seconds_max)
    assert {order["orderId"] for order in settled} == set(client.acknowledged.values())
    return settled


def is_in_doubt(order: dict[str, Any], victim: Process) -> bool:
    """Only where nobody can be asked does a doubt last."""
    return order["status"] == "UNKNOWN" and victim.settings["VENUE_DEDUPE_SIM"] == "none"


def check(dedupe: str, simulator: Simulator, orders: list[dict[str, Any]]) -> None:
    executions = simulator.executions()
    assert set(executions.values()) == {1}, "the venue took an order twice"
    by_status = Counter(order["status"] for order in orders)
    assert by_status["FILLED"] > 100
    for order in orders:
        taken = executions[order["orderId"]]
        match order["status"]:
            case "FILLED":
                assert (taken, order["filledQty"]) == (1, 1000)
                assert order["reason"] is None, f"{order} was said to have failed, and was executed after all"
            case "EXPIRED" | "REJECTED":
                assert (taken, order["filledQty"]) == (0, 0), f"{order} was executed after all"
            case "UNKNOWN":
                assert dedupe == "none"
            case other:
                raise AssertionError(f"unexpected status {other}")
    if dedupe == "none":
        assert by_status["UNKNOWN"], "with answers lost and nobody to ask, something must be in doubt"
