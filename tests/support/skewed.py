"""Runs `switchyard` with a wall clock that is ahead of the machine's by the number of seconds in a file.

Usage: python -m tests.support.skewed FILE COMMAND …
"""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from switchyard.adapters.system_clock import SystemClock
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


def skew(file: Path) -> None:
    """Replace this process's SystemClock.now; the file is read at every call."""

    def now(self: SystemClock) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=float(file.read_text("ascii")))

    SystemClock.now = now  # type: ignore[method-assign]


if __name__ == "__main__":
    from switchyard.entrypoints.cli.main import run

    skew(Path(sys.argv[1]))
    sys.argv = ["switchyard", *sys.argv[2:]]
    run()
