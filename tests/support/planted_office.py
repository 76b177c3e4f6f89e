"""Runs `switchyard up` with a small WAL and a back office that misbehaves while a file of that name is in its folder.

`stop`: stops itself in the middle of a read of the journal, once. `slow`: lingers in every read. `full`: cannot write.
`exit`: ends at its start.
Usage: python -m tests.support.planted_office ROLE, where the role is `up`, or `child` for the back office.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw

from switchyard.adapters.sqlite import connections
from switchyard.adapters.sqlite.connections import Connections
from switchyard.entrypoints.cli.main import run
from switchyard.entrypoints.control import office
from tests.support.disk import FailingDisk
from tests.support.wrapped import Wrapped, command, run_wrapped

T = TypeVar("T")
STOP, STOPPED, SLOW, FULL, EXIT = map(Path, ("stop", "stopped", "slow", "full", "exit"))
SLOW_SECONDS = 0.5
# A few hundred orders fill it.
PAGES, PAGES_MAX = 200, 800


def planted_reads() -> None:
    """Have reads of the journal stop or linger inside their transaction."""
    watched = Connections._watched

    def plant(self: Connections, work: Callable[[apsw.Connection], T], connection: apsw.Connection) -> T:
        def in_transaction(connection: apsw.Connection) -> T:
            with connection:
                found = work(connection)
                connection.execute("SELECT count(*) FROM events").fetchall()
                if STOP.exists():
                    STOP.rename(STOPPED)
                    os.kill(os.getpid(), signal.SIGSTOP)
                    time.sleep(SLOW_SECONDS)  # the signal may stop another thread first
                if SLOW.exists():
                    time.sleep(SLOW_SECONDS)
            return found

        return watched(self, in_transaction, connection)

    Connections._watched = plant  # type: ignore[method-assign]


class FullOnDemand(FailingDisk):
    """The default VFS, full while the file is there."""

    @property
    def is_full(self) -> bool:
        return FULL.exists()

    @is_full.setter
    def is_full(self, value: bool) -> None:
        assert not value


def run_child() -> None:
    """Run the back office."""
    if EXIT.exists():
        sys.exit(1)
    planted_reads()
    disk = FullOnDemand()
    sys.argv = ["switchyard", "backoffice", "--child"]
    try:
        run()
    finally:
        del disk


if __name__ == "__main__":
    if sys.argv[1] == "child":
        run_child()
    connections.CHECKPOINT_PAGES = PAGES
    connections.CHECKPOINT_PAGES_MAX = PAGES_MAX
    office.COMMAND = tuple(command("planted_office", "child"))
    run_wrapped("up", Wrapped())
