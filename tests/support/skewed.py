"""Runs `switchyard` by a clock that is ahead of the machine's by the seconds in a file, whatever they are just then.

Usage: python -m tests.support.skewed FILE COMMAND …
"""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from switchyard.adapters.system_clock import SystemClock
from tests.support.process import Process


class SkewedProcess(Process):
    """One `switchyard …` process whose wall clock a test can set; time still passes at its own pace."""

    def __init__(self, folder: Path, role: str, ahead: timedelta, **settings: str) -> None:
        super().__init__(folder, role, **settings)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "ahead"
        self.command = [sys.executable, "-m", "tests.support.skewed", str(self._file)]
        self.settings["PYTHONPATH"] = str(Path(__file__).parents[2])
        self.step(ahead)

    def step(self, ahead: timedelta) -> None:
        """Set the clock."""
        # Replaced as a whole: the process may read it in this very moment.
        draft = self._file.with_suffix(".new")
        draft.write_text(str(ahead.total_seconds()), "ascii")
        draft.replace(self._file)


def skew(file: Path) -> None:
    """From now on this process's clock is ahead by what the file says."""

    def now(self: SystemClock) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=float(file.read_text("ascii")))

    SystemClock.now = now  # type: ignore[method-assign]


if __name__ == "__main__":
    from switchyard.entrypoints.cli.main import run

    skew(Path(sys.argv[1]))
    sys.argv = ["switchyard", *sys.argv[2:]]
    run()
