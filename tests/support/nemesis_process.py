"""Runs `switchyard` for the nemesis: with a clock that can be stepped, and with a planted bug if one is named.

Usage: python -m tests.support.nemesis_process FILE BUG ROLE
FILE holds the seconds that the wall clock is ahead; BUG is `none` for the product as it is.
"""

import asyncio
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import aiohttp

from tests.support.planted import DEFECTS
from tests.support.polling import DEADLINE_SECONDS
from tests.support.process import ROOT, Process
from tests.support.skewed import SkewedClock, SkewedDatabaseTime
from tests.support.wrapped import Wrapped, command, run_wrapped

NO_BUG = "none"


class NemesisProcess(Process):
    """A process whose wall clock, and with it the database's, can be stepped."""

    def __init__(self, folder: Path, role: str, *, bug: str = NO_BUG, **settings: str) -> None:
        super().__init__(folder, role, **settings)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"ahead-{role}"
        self.command = command("nemesis_process", str(self._file), bug)
        self.settings["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}"
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


if __name__ == "__main__":
    steps = Path(sys.argv[1])
    wrapped = Wrapped() if sys.argv[2] == NO_BUG else DEFECTS[sys.argv[2]]
    wrapped.add(clock=partial(SkewedClock, steps), time=partial(SkewedDatabaseTime, steps, timedelta()))
    run_wrapped(sys.argv[3], wrapped)
