"""SIGKILL at each boundary of a send, in each class of venue, over hundreds of orders."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.dying import BOUNDARIES, LAST_WORDS, dying_command
from tests.support.evidence import audit_lines, check_audit
from tests.support.exactly_once import Snapshot, check_acknowledged, check_executions, in_every_class, settled
from tests.support.load import Client
from tests.support.planted import planted_command
from tests.support.postgres import PostgresServer
from tests.support.process import COMMAND, ROOT, Process, run_command, until
from tests.support.simulator import Simulator, venue_settings

DEATHS = 2
# More than a worker has slots in all its lives: each life has something left to send.
ORDERS = 400
# Odd numbers, which are orders that may wait: each of them is sent however often the sender dies.
KEYS = [f"key-{number}" for number in range(1, 2 * ORDERS, 2)]
# This venue takes what it gets at once.
WINDOW = {"VENUE_WINDOW_SEC_SIM": "1"}
# Where the venue has the order in hand when death comes.
AFTER_THE_BYTES_LEFT = ("after_the_request_left", "after_the_answer", "before_the_outcome_is_written")

each_boundary = pytest.mark.parametrize("boundary", list(BOUNDARIES))


@each_boundary
async def test_a_worker_that_dies_there_executes_nothing_twice_and_loses_nothing(
    boundary: str, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    async def scenario(dedupe: str) -> None:
        await worker_dies(boundary, dedupe, tmp_path / dedupe, postgres_server)

    await in_every_class(scenario)


@each_boundary
async def test_a_whole_process_on_sqlite_that_dies_there_executes_nothing_twice_and_loses_nothing(
    boundary: str, tmp_path: Path
) -> None:
    async def scenario(dedupe: str) -> None:
        folder = tmp_path / dedupe
        await process_dies(boundary, dedupe, Simulator(folder / "venue", dedupe), folder, [str(COMMAND)])

    await in_every_class(scenario)


@pytest.mark.parametrize("dedupe", ["open_only", "none"])
async def test_a_survivor_that_sends_blindly_again_would_be_noticed(dedupe: str, tmp_path: Path) -> None:
    # Late reports: an early one is evidence that would save even a worker that guesses.
    simulator = Simulator(tmp_path / "venue", dedupe, {"late_reports": 4.0})
    planted = planted_command("blind_requeue")
    with pytest.raises(AssertionError, match="the venue took a client order id twice"):
        await process_dies("after_the_answer", dedupe, simulator, tmp_path, planted)


async def worker_dies(boundary: str, dedupe: str, folder: Path, postgres_server: PostgresServer) -> None:
    """Some workers die, then two start at once and recover what is there."""
    simulator = Simulator(folder / "venue", dedupe)
    settings = {
        **venue_settings(dedupe, simulator),
        **WINDOW,
        "SWITCHYARD_DATABASE_URL": postgres_server.create_database(),
        "PYTHONPATH": str(ROOT),
    }
    upgraded = await asyncio.to_thread(run_command, "db", "upgrade", **settings)
    assert upgraded.returncode == 0, upgraded.stderr
    gateway = Process(folder / "gateway", "gateway", **settings)
    dying, *recoverers = (Process(folder / name, "worker", **settings) for name in ("dying", "first", "second"))
    dying.command = dying_command(boundary)
    try:
        await asyncio.gather(simulator.start(), gateway.start())
        client = Client(gateway)
        await client.insist(KEYS)
        for _ in range(DEATHS):
            dying.spawn()
            await until_dead(dying, boundary, simulator)
        await asyncio.gather(*(recoverer.start() for recoverer in recoverers))
        orders = await settled(gateway, simulator, dedupe=dedupe)
        for process in (*recoverers, gateway):
            # Whatever was on its way has happened then, and is written down.
            assert await asyncio.to_thread(process.stop) == 0
        check(boundary, dedupe, simulator, orders, client, audit_lines(gateway))
    finally:
        for process in (dying, *recoverers, gateway, simulator):
            process.close()


async def process_dies(boundary: str, dedupe: str, simulator: Simulator, folder: Path, survivor: list[str]) -> None:
    """A whole process on SQLite dies some times and starts again."""
    process = Process(folder, **venue_settings(dedupe, simulator) | WINDOW, PYTHONPATH=str(ROOT))
    process.command = dying_command(boundary)
    client = Client(process)
    try:
        await process.start()
        # Half of the orders wait for the venue to come up, so that the first life has its hands full;
        # the others come while the process dies and starts again.
        await client.insist(KEYS[: ORDERS // 2])
        posting = asyncio.create_task(client.insist(KEYS[ORDERS // 2 :]))
        await simulator.start()
        await until_dead(process, boundary, simulator)
        for _ in range(DEATHS - 1):
            process.spawn()
            await until_dead(process, boundary, simulator)
        process.command = survivor
        await process.start()
        await posting
        orders = await settled(process, simulator, dedupe=dedupe)
        await check_audit(process, folder)
        check(boundary, dedupe, simulator, orders, client, audit_lines(process))
    finally:
        process.close()
        simulator.close()


async def until_dead(process: Process, boundary: str, simulator: Simulator) -> None:
    """Wait for its death, and see that it happened where it should."""
    await until(lambda: not process.is_running)
    assert process.wait() == -9, process.log
    in_hand = process.log.rpartition(LAST_WORDS)[2].split()[0]
    if boundary in AFTER_THE_BYTES_LEFT:
        await until(lambda: in_hand in simulator.orders())


def check(
    boundary: str,
    dedupe: str,
    simulator: Simulator,
    orders: list[Snapshot],
    client: Client,
    lines: list[dict[str, Any]],
) -> None:
    check_acknowledged(client, orders)
    assert len(orders) == ORDERS
    executions = check_executions(simulator, orders)
    in_doubt = {order["orderId"] for order in orders if order["status"] == "UNKNOWN"}
    assert set(executions) == {order["orderId"] for order in orders} - in_doubt
    if dedupe != "none":
        assert not in_doubt
    elif boundary == "after_the_attempt_is_committed":
        assert len(in_doubt) >= DEATHS, "what was in hand at a death was neither executed nor left in doubt"
    check_resends(dedupe, lines, in_doubt)


def check_resends(dedupe: str, lines: list[dict[str, Any]], in_doubt: set[str]) -> None:
    """Where ids are not known for good, nothing was sent again while it was in doubt.

    The doubt ends by asking, and where nobody can be asked not at all; a refused connection raises none. Of what is in
    doubt now nothing waits to be sent, nor did two recoverers speak of the same attempt.
    """
    before: dict[str, tuple[str, dict[str, Any]]] = {}
    recovered: Counter[tuple[str, int]] = Counter()
    for line in lines:
        for row in line["data"].get("outbox", ()):
            if row["status"] == "sending" and row["attempt"] > 1 and dedupe != "forever":
                status, earlier = before[line["orderId"]]
                assert status != "UNKNOWN", f"sent again in doubt: {line}"
                assert dedupe != "none" or earlier["lastError"] != "ABSENT_AT_VENUE", f"nobody could be asked: {line}"
            recovered[line["orderId"], row["attempt"]] += line["type"] == "OrderUncertain"
            before[line["orderId"]] = (line["data"]["order"]["status"], row)
    assert max(recovered.values()) == 1, "no attempt was recovered, or one of them twice"
    assert {before[order_id][1]["status"] for order_id in in_doubt} <= {"uncertain"}
