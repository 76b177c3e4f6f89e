"""Processes die and answers get lost: the venue's own log shows each order at most once, in every class of venue."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.support.exactly_once import Snapshot, check_executions, in_every_class, killed_under_load
from tests.support.planted import planted_command
from tests.support.postgres import PostgresServer
from tests.support.process import ROOT, Process, run_command
from tests.support.simulator import Simulator, venue_settings

# One who guesses would have sent again by now: the first backoff and the acceptance window are two seconds each.
DOUBT_SECONDS = 4.0
FAULTS = {"drop_answer": 0.08, "accepted_5xx": 0.08, "refused_5xx": 0.05, "rate_limit": 0.01, "garbage": 0.04}


async def test_the_whole_process_on_sqlite_killed_under_load_executes_nothing_twice(tmp_path: Path) -> None:
    async def scenario(dedupe: str) -> None:
        folder = tmp_path / dedupe
        simulator = Simulator(folder / "venue", dedupe, FAULTS)
        process = Process(folder, **venue_settings(dedupe, simulator))
        try:
            await asyncio.gather(simulator.start(), process.start())
            orders = await killed_under_load(process, victim=process, simulator=simulator, doubt_seconds=DOUBT_SECONDS)
            assert await asyncio.to_thread(process.stop) == 0
            check(dedupe, simulator, orders)
        finally:
            process.close()
            simulator.close()

    await in_every_class(scenario)


async def test_a_worker_on_postgresql_killed_under_load_executes_nothing_twice(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    async def scenario(dedupe: str) -> None:
        folder = tmp_path / dedupe
        settings = {"SWITCHYARD_DATABASE_URL": postgres_server.create_database()}
        upgraded = await asyncio.to_thread(run_command, "db", "upgrade", **settings)
        assert upgraded.returncode == 0, upgraded.stderr
        simulator = Simulator(folder / "venue", dedupe, FAULTS)
        gateway = Process(folder / "gateway", "gateway", **settings)
        worker = Process(folder / "worker", "worker", **settings, **venue_settings(dedupe, simulator))
        try:
            await asyncio.gather(*(process.start() for process in (simulator, gateway, worker)))
            orders = await killed_under_load(gateway, victim=worker, simulator=simulator, doubt_seconds=DOUBT_SECONDS)
            assert await asyncio.to_thread(worker.stop) == 0
            check(dedupe, simulator, orders)
        finally:
            for process in (gateway, worker, simulator):
                process.close()

    await in_every_class(scenario)


@pytest.mark.parametrize(
    ("bug", "dedupe", "shows_as"),
    [
        ("blind_requeue", "open_only", "the venue took a client order id twice"),
        ("blind_requeue", "none", "the venue took a client order id twice"),
        ("sent_before_sending", "forever", "is said to be at the venue, which does not have it"),
        ("doubt_is_rejection", "forever", "nobody rejected or cancelled"),
    ],
)
async def test_the_harness_fails_when_a_bug_is_planted(bug: str, dedupe: str, shows_as: str, tmp_path: Path) -> None:
    # Late reports: an early one is evidence that would save even a worker that guesses.
    simulator = Simulator(tmp_path / "venue", dedupe, {**FAULTS, "late_reports": 4.0})
    process = Process(tmp_path, **venue_settings(dedupe, simulator), PYTHONPATH=str(ROOT))
    process.command = planted_command(bug)
    try:
        await simulator.start()
        await process.start()
        with pytest.raises(AssertionError, match=shows_as):
            await killed_under_load(process, victim=process, simulator=simulator)
    finally:
        process.close()
        simulator.close()


def check(dedupe: str, simulator: Simulator, orders: list[Snapshot]) -> None:
    executions = check_executions(simulator, orders)
    assert set(executions) <= {order["orderId"] for order in orders}, "the venue has an order that nobody here knows"
    statuses = Counter(order["status"] for order in orders)
    assert statuses["FILLED"] > 100
    if dedupe == "none":
        assert statuses["UNKNOWN"], "with answers lost and nobody to ask, something must be in doubt"
