"""Long ways to a second execution: over an older database, and over a sender that slept through a restart."""

import asyncio
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.dying import LAST_WORDS, pausing_command
from tests.support.evidence import audit_lines, tool_settings
from tests.support.exactly_once import settled
from tests.support.load import Client, pages
from tests.support.postgres import PostgresServer
from tests.support.process import ROOT, Process, run_command, until
from tests.support.simulator import Simulator, venue_settings

KEYS = [f"key-{number}" for number in range(1, 11, 2)]
STUCK = {"OUTBOX_STUCK_THRESHOLD_MIN": "0.01", "VENUE_WINDOW_SEC_SIM": "1"}


@pytest.mark.parametrize("dedupe", ["open_only", "none"])
async def test_a_key_that_a_restored_database_does_not_know_is_not_executed_again(dedupe: str, tmp_path: Path) -> None:
    simulator = Simulator(tmp_path / "venue", dedupe)
    process = Process(tmp_path, **venue_settings(dedupe, simulator), VENUE_SWEEP_SEC_SIM="1")
    try:
        await asyncio.gather(simulator.start(), process.start())
        assert process.stop() == 0
        shutil.copytree(tmp_path / "var", tmp_path / "backup")
        await process.start()
        await Client(process).insist(KEYS)
        await settled(process, simulator, dedupe=dedupe)
        assert process.stop() == 0
        shutil.copy(tmp_path / "backup/switchyard.db", tmp_path / "var/switchyard.db")
        assert json.loads(run_command("db", "restored", "--json", **tool_settings(process)).stdout)["epoch"] == 2
        await process.start()
        # Before the venue's reports are read again a repeat would be matched with them, and end well.
        await until(lambda: sum(line["type"] == "ReportUnmatched" for line in audit_lines(process)) == len(KEYS))
        await Client(process).insist(KEYS)  # as a careful client would whose order is not there any more
        # Found again, the order has its fills; where nobody can be asked, a person has to tell.
        expected = {"open_only": {"FILLED"}, "none": {"UNKNOWN"}}[dedupe]
        async with aiohttp.ClientSession() as session:

            async def is_settled() -> bool:
                return {order["status"] for order in await pages(session, process)} == expected

            await until(is_settled)
        assert set(simulator.orders().values()) == {1}, "the venue took a client order id twice"
    finally:
        process.close()
        simulator.close()


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of its own, since this one is going to be restarted."""
    with PostgresServer() as started:
        yield started


async def test_a_sender_that_slept_through_a_restart_of_the_database_sends_nothing(
    tmp_path: Path, server: PostgresServer
) -> None:
    simulator = Simulator(tmp_path / "venue", "open_only")
    settings = {**venue_settings("open_only", simulator), **STUCK, "SWITCHYARD_DATABASE_URL": server.create_database()}
    assert run_command("db", "upgrade", **settings).returncode == 0
    gateway = Process(tmp_path / "gateway", "gateway", **settings)
    paused, survivor = (
        Process(tmp_path / name, "worker", **settings, PYTHONPATH=str(ROOT)) for name in ("paused", "survivor")
    )
    paused.command = pausing_command("after_the_attempt_is_committed")
    try:
        await asyncio.gather(simulator.start(), gateway.start())
        client = Client(gateway)
        await client.insist(KEYS)
        paused.spawn()
        await until(lambda: LAST_WORDS in paused.log)
        server.stop()  # with its session goes the lock that says that it lives
        server.start()
        await survivor.start()
        await until(lambda: len(simulator.orders()) == len(KEYS))
        paused.send(signal.SIGCONT)
        assert paused.stop() == 0  # drained: whatever it had to send, it has sent
        simulator.check_nothing_twice()
    finally:
        for process in (paused, survivor, gateway, simulator):
            process.close()
