"""The first hour of a new user: the README's commands, every `--help` and the likely mistakes, with their output."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import typer

from switchyard.entrypoints.cli.main import app
from tests.support.polling import DEADLINE_SECONDS, until
from tests.support.ports import free_port
from tests.support.process import ROOT
from tests.support.record import FOLDER, Session, check_text, commands_of

PROGRAM = ".venv/bin/switchyard"


class Terminal:
    """`switchyard up` in the foreground of a terminal or with its output in a file."""

    def __init__(self, session: Session, folder: Path, *, is_terminal: bool = False) -> None:
        self._screen, inside = os.openpty() if is_terminal else (-1, -1)
        self._file = folder / "up.log"
        with self._file.open("wb") as file:
            self.process = subprocess.Popen(
                [PROGRAM, "up"],
                cwd=folder,
                env=session.environment,
                stdout=inside if is_terminal else file,
                stderr=subprocess.STDOUT,
                # A shell without job control starts background jobs with SIGINT ignored, and children inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self._shown = ""
        if is_terminal:
            os.set_blocking(self._screen, False)
            os.close(inside)

    @property
    def output(self) -> str:
        if self._screen < 0:
            return self._file.read_text("utf-8")
        with contextlib.suppress(OSError):  # nothing new, or the process has ended
            self._shown += os.read(self._screen, 65536).decode().replace("\r", "")
        return self._shown

    async def until_shown(self, text: str) -> None:
        await until(lambda: text in self.output, lambda: self.output)

    async def interrupt(self) -> int:
        """Press Ctrl-C and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        code = await asyncio.to_thread(self.process.wait, DEADLINE_SECONDS)
        await self.until_shown("has stopped")
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._screen >= 0:
            os.close(self._screen)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path, free_port())


@pytest.fixture
async def up(session: Session, tmp_path: Path) -> AsyncIterator[Terminal]:
    terminal = Terminal(session, tmp_path)
    try:
        await terminal.until_shown("venue_synced")
        yield terminal
    finally:
        terminal.close()


async def test_the_first_orders_are_as_recorded_and_log_no_problem(up: Terminal, session: Session) -> None:
    await asyncio.to_thread(session.check, "first_orders")
    assert await up.interrupt() == 0
    lines = [line for line in up.output.splitlines() if " [info " not in line]
    check_text("up", session.plain("\n".join(lines)).strip() + "\n")


async def test_likely_mistakes_are_answered_as_recorded(up: Terminal, session: Session) -> None:
    await asyncio.to_thread(session.check, "mistakes", forks=True)


def test_every_help_is_as_recorded(session: Session) -> None:
    recorded = commands_of((FOLDER / "help.txt").read_text("utf-8"))
    assert recorded == [f"{PROGRAM}{path} --help" for path in command_paths(typer.main.get_command(app))]
    session.check("help", forks=True)


def command_paths(command: object, path: str = "") -> Iterator[str]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from command_paths(inner, f"{path} {name}")


async def test_tables_fit_80_columns_whatever_they_show(session: Session, tmp_path: Path) -> None:
    session.environment["VENUE_URL_SIM"] = "http://127.0.0.1:1"  # no broker: rows stay in the outbox
    terminal = Terminal(session, tmp_path)
    try:
        await terminal.until_shown("venue_not_synced")
        for command in (
            "order sell EURUSD 123456789 --limit 98765.12345 --tif GTC --strategy carry",
            "order buy USDJPY 1000 --limit 1 --tif GTC --tag a-tag-of-a-certain-length-that-is-shown-by-show",
            "cancel $(.venv/bin/switchyard orders --limit 1 | sed -n 2p | cut -c -8)",
        ):
            await asyncio.to_thread(session.output, f"{PROGRAM} {command}")
        for command in (
            "orders",
            "outbox list --status queued",
            "show $(.venv/bin/switchyard orders --symbol EURUSD | sed -n 2p | cut -c -8)",
        ):
            shown = await asyncio.to_thread(session.output, f"{PROGRAM} {command}")
            assert "EURUSD" in shown or "sim" in shown
            assert max(map(len, shown.splitlines())) <= 80, shown
        wide = await asyncio.to_thread(session.output, f"{PROGRAM} orders --wide")
        assert re.search(r"^ord_[0-9A-Z]{26}  .*SELL 123456789 EURUSD @ 98765.12345 GTC  ACCEPTED", wide, re.MULTILINE)
        row = (await asyncio.to_thread(session.output, f"{PROGRAM} outbox list --status queued")).splitlines()[1]
        explained = await asyncio.to_thread(session.output, f"{PROGRAM} outbox show {row.split()[0]}")
        assert re.match(rf"Id: +ord_[0-9A-Z]+{row.split()[0]}\n", explained)
    finally:
        terminal.close()


def test_the_recorded_commands_include_those_of_the_readme() -> None:
    readme = commands_of((ROOT / "README.md").read_text("utf-8"))
    recorded = {command for file in FOLDER.glob("*.txt") for command in commands_of(file.read_text("utf-8"))}
    # `make up` runs `switchyard up`; PostgreSQL, the simulated broker and `/do/order` have tests of their own.
    elsewhere = re.compile(
        r"make |export |\.venv/bin/switchyard (db upgrade|gateway|worker|venue-sim)|VENUE_URL_SIM=|.*/do/"
    )
    assert [command for command in readme if command not in recorded and not elsewhere.match(command)] == []


async def test_a_terminal_shows_a_token_that_works(session: Session, tmp_path: Path) -> None:
    terminal = Terminal(session, tmp_path, is_terminal=True)
    try:
        await terminal.until_shown("Watch it fill")
        await terminal.until_shown("venue_synced")
        command = re.search(r"^curl (?:.*\\\n)+.*$", terminal.output, re.MULTILINE)
        assert command is not None
        assert re.search(r'"Authorization: Bearer eyJ[\w.-]+"', command[0])
        placed = await asyncio.to_thread(
            subprocess.run, ["bash", "-c", command[0]], capture_output=True, text=True, check=True
        )
        assert '"status":"ACCEPTED"' in placed.stdout
        assert await terminal.interrupt() == 0
    finally:
        terminal.close()
