"""Runs `switchyard` with a wall clock that is ahead of the machine's by the number of seconds in a file.

`DATABASE_LATE_SECONDS` makes the time that the process reads from PostgreSQL late by so much, as slow answers do.

Usage: python -m tests.support.skewed FILE COMMAND …
"""

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from switchyard.adapters.postgres.database_time import PostgresTime
from switchyard.adapters.system_clock import SystemClock
from switchyard.ports.database_time import TimeReading
from tests.support.process import Process


class SkewedProcess(Process):
    """A `switchyard` process whose wall clock the test can step; the clock's speed is unchanged."""

    def __init__(self, folder: Path, role: str, ahead: timedelta, **settings: str) -> None:
        super().__init__(folder, role, **settings)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "ahead"
        self.command = [sys.executable, "-m", "tests.support.skewed", str(self._file)]
        self.settings["PYTHONPATH"] = str(Path(__file__).parents[2])
        self.step(ahead)

    def step(self, ahead: timedelta) -> None:
        """Set how far the clock is ahead."""
        # Replaced as a whole, because the process may be reading the file.
        draft = self._file.with_suffix(".new")
        draft.write_text(str(ahead.total_seconds()), "ascii")
        draft.replace(self._file)

    def make_database_late(self, late: timedelta) -> None:
        """Let the process, once started, read times from PostgreSQL that are late by so much."""
        self.settings["DATABASE_LATE_SECONDS"] = str(late.total_seconds())


def skew(file: Path) -> None:
    """Replace this process's SystemClock.now; the file is read at every call."""

    def now(self: SystemClock) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=float(file.read_text("ascii")))

    SystemClock.now = now  # type: ignore[method-assign]


def make_database_late(late: timedelta) -> None:
    """Replace this process's PostgresTime.read."""
    read = PostgresTime.read

    async def read_late(self: PostgresTime) -> TimeReading:
        reading = await read(self)
        return msgspec.structs.replace(reading, wall=reading.wall - late)

    PostgresTime.read = read_late  # type: ignore[method-assign]


if __name__ == "__main__":
    from switchyard.entrypoints.cli.main import run

    skew(Path(sys.argv[1]))
    make_database_late(timedelta(seconds=float(os.environ.get("DATABASE_LATE_SECONDS", "0"))))
    sys.argv = ["switchyard", *sys.argv[2:]]
    run()
