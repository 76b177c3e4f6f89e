"""Runs `switchyard` with a wall clock that is ahead of the machine's by the seconds in a file.

`DATABASE_LATE_SECONDS` makes the time that the process reads from PostgreSQL late by so much, as slow answers do.

Usage: python -m tests.support.skewed FILE ROLE
"""

import os
import sys
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import msgspec

from switchyard.ports.journal import TimeReading
from tests.support.process import Process
from tests.support.wrapped import Forwarding, Wrapped, command, run_wrapped


class SkewedProcess(Process):
    """A `switchyard` process whose wall clock a test can set; its monotonic clock is the machine's."""

    def __init__(self, folder: Path, role: str, ahead: timedelta, **settings: str) -> None:
        super().__init__(folder, role, **settings)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "ahead"
        self.command = command("skewed", str(self._file))
        self.step(ahead)

    def step(self, ahead: timedelta) -> None:
        """Set the clock."""
        # Replaced atomically, because the process may read the file at the same time.
        draft = self._file.with_suffix(".new")
        draft.write_text(str(ahead.total_seconds()), "ascii")
        draft.replace(self._file)

    def make_database_late(self, late: timedelta) -> None:
        """Let the process, once started, read times from PostgreSQL that are late by so much."""
        self.settings["DATABASE_LATE_SECONDS"] = str(late.total_seconds())


class SkewedClock(Forwarding):
    """The machine's clock plus the seconds in a file."""

    def __init__(self, file: Path, port: object) -> None:
        super().__init__(port)
        self._file = file

    def now(self) -> datetime:
        machine: datetime = self.port.now()
        return machine + timedelta(seconds=float(self._file.read_text("ascii")))


class SkewedDatabaseTime(Forwarding):
    """The database's time: late, and on SQLite, which has the machine's clock, stepped with it."""

    def __init__(self, file: Path | None, late: timedelta, port: object) -> None:
        super().__init__(port)
        self._file = file
        self._late = late

    async def read(self) -> TimeReading:
        reading: TimeReading = await self.port.read()
        ahead = timedelta(seconds=float(self._file.read_text("ascii")) if self._file is not None else 0.0)
        return msgspec.structs.replace(reading, wall=reading.wall + ahead - self._late)


if __name__ == "__main__":
    steps, role = Path(sys.argv[1]), sys.argv[2]
    late = timedelta(seconds=float(os.environ.get("DATABASE_LATE_SECONDS", "0")))
    stepped = steps if role == "up" else None
    run_wrapped(role, Wrapped(clock=partial(SkewedClock, steps), time=partial(SkewedDatabaseTime, stepped, late)))
