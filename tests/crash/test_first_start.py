"""The first start on SQLite is interrupted, or finds a file that is not ours: the next start needs no repair."""

import sys
from pathlib import Path

import aiohttp
import apsw
import pytest

from tests.support.cluster import Cluster
from tests.support.orders import MARKET, place
from tests.support.process import Process

DIE_IN_MID_UPGRADE = """
import os, signal
from switchyard.adapters.sqlite import migrations
from switchyard.entrypoints.cli.main import run
migrations.programs = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
run()
"""


@pytest.fixture
def process(cluster: Cluster) -> Process:
    return cluster.process()


@pytest.fixture
def database_file(tmp_path: Path) -> Path:
    """An empty file in the place of the database."""
    path = tmp_path / "var/switchyard.db"
    path.parent.mkdir()
    path.touch()
    return path


async def check_start(process: Process, session: aiohttp.ClientSession) -> None:
    await process.start()
    await place(session, process, body=MARKET)
    assert process.stop() == 0


async def test_a_process_killed_while_it_creates_the_schema_creates_it_at_the_next_start(
    process: Process, session: aiohttp.ClientSession
) -> None:
    command = process.command
    process.command = [sys.executable, "-c", DIE_IN_MID_UPGRADE]
    process.spawn()
    assert process.wait() == -9
    assert (process.folder / "var/switchyard.db").exists()
    process.command = command
    await check_start(process, session)


@pytest.mark.usefixtures("database_file")
async def test_an_empty_file_gets_the_schema(process: Process, session: aiohttp.ClientSession) -> None:
    await check_start(process, session)


def test_the_database_of_another_program_is_not_changed(process: Process, database_file: Path) -> None:
    with apsw.Connection(str(database_file)) as connection:
        connection.execute("CREATE TABLE theirs (name TEXT)")
    process.spawn()
    assert process.wait() == 4
    with apsw.Connection(str(database_file)) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]


@pytest.mark.parametrize("command", ["up", "db"])
def test_a_file_that_is_not_a_database_is_named(cluster: Cluster, database_file: Path, command: str) -> None:
    database_file.write_text("minutes of the annual meeting\n" * 100)
    process = cluster.process(command)
    process.arguments = ["upgrade"] if command == "db" else []
    process.spawn()
    assert process.wait() == 4
    assert f"{database_file} is not a SQLite database" in process.log
    assert "Traceback" not in process.log
