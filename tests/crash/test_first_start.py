"""The very first start on SQLite is cut short: the next one needs nobody's help."""

import sys
from pathlib import Path

import aiohttp
import apsw
import pytest

from tests.support.process import Process

BODY = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000}
DIE_IN_MID_UPGRADE = """
import os, signal
from switchyard.adapters.sqlite import migrations
from switchyard.entrypoints.cli.main import run
migrations.programs = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
run()
"""


async def check_start(process: Process) -> None:
    try:
        await process.start()
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{process.url}/orders", json=BODY, headers=process.headers()) as response,
        ):
            assert response.status == 202
        assert process.stop() == 0
    finally:
        process.close()


async def test_a_process_killed_while_it_made_the_schema_makes_it_at_the_next_start(tmp_path: Path) -> None:
    process = Process(tmp_path)
    usual = process.command
    process.command = [sys.executable, "-c", DIE_IN_MID_UPGRADE]
    process.spawn()
    assert process.wait() == -9
    assert (tmp_path / "var/switchyard.db").exists()
    process.command = usual
    await check_start(process)


async def test_an_empty_file_is_given_its_schema(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var/switchyard.db").touch()
    await check_start(Process(tmp_path))


async def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    with apsw.Connection(str(tmp_path / "var/switchyard.db")) as connection:
        connection.execute("CREATE TABLE theirs (name TEXT)")
    process = Process(tmp_path)
    process.spawn()
    assert process.wait() == 4
    with apsw.Connection(str(tmp_path / "var/switchyard.db")) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]


@pytest.mark.parametrize("command", ["up", "db"])
async def test_a_file_that_is_no_database_is_named(tmp_path: Path, command: str) -> None:
    path = tmp_path / "var/switchyard.db"
    path.parent.mkdir()
    path.write_text("minutes of the annual meeting\n" * 100)
    process = Process(tmp_path, command)
    process.arguments = ["upgrade"] if command == "db" else []
    process.spawn()
    assert process.wait() == 4
    assert f"{path} is not a SQLite database" in process.log
    assert "Traceback" not in process.log
