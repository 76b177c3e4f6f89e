"""Runs `switchyard` for the nemesis: with a clock that can be stepped, and with a planted bug if one is named.

Usage: python -m tests.support.nemesis_process FILE BUG COMMAND …
FILE holds the seconds that the wall clock is ahead; BUG is `none` for the product as it is.
"""

import asyncio
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp

from switchyard.adapters.postgres.keys import PostgresKeyStore
from switchyard.adapters.sqlite.keys import SqliteKeyStore
from switchyard.adapters.system_clock import SystemClock
from tests.support.planted import BUGS
from tests.support.process import DEADLINE_SECONDS, ROOT, Process

NO_BUG = "none"


class NemesisProcess(Process):
    """A process whose wall clock, and with it the database's, can be stepped."""

    def __init__(self, folder: Path, role: str, *, bug: str = NO_BUG, **settings: str) -> None:
        super().__init__(folder, role, **settings)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"ahead-{role}"
        self.command = [sys.executable, "-m", "tests.support.nemesis_process", str(self._file), bug]
        self.settings["PYTHONPATH"] = str(ROOT)
        if role == "worker":
            self.settings["SWITCHYARD_METRICS_PORT"] = str(self.port)  # so that a worker can be asked, too
        self.step(0.0)

    async def has_started(self) -> bool:
        """Wait until the process answers, also with an error; false if it ended instead."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            deadline = time.monotonic() + DEADLINE_SECONDS
            while self.is_running:
                try:
                    async with session.get(f"{self.url}/health"):
                        return True
                except (aiohttp.ClientError, TimeoutError):
                    assert time.monotonic() < deadline, f"did not start:\n{self.log}"
                    await asyncio.sleep(0.05)
        return False

    def step(self, ahead_seconds: float) -> None:
        """Set how far the wall clock is ahead."""
        draft = self._file.with_suffix(".new")  # replaced as a whole: the process may be reading it
        draft.write_text(str(ahead_seconds), "ascii")
        draft.replace(self._file)


def skew(file: Path) -> None:
    """Step the clocks of this process by the seconds in the file, which is read at every call."""

    def ahead() -> timedelta:
        return timedelta(seconds=float(file.read_text("ascii")))

    system_now = SystemClock.now

    def now(self: SystemClock) -> datetime:
        return system_now(self) + ahead()

    SystemClock.now = now  # type: ignore[method-assign]
    for keys in (SqliteKeyStore, PostgresKeyStore):
        _skew_database(keys, ahead)


def _skew_database(keys: Any, ahead: Any) -> None:
    database_now = keys.now

    async def now(self: Any) -> datetime:
        return await database_now(self) + ahead()  # type: ignore[no-any-return]

    keys.now = now


if __name__ == "__main__":
    from switchyard.entrypoints.cli.main import run

    skew(Path(sys.argv[1]))
    if sys.argv[2] != NO_BUG:
        BUGS[sys.argv[2]]()
    sys.argv = ["switchyard", *sys.argv[3:]]
    run()
