"""Runs `switchyard db restored` so that it kills itself after its first commit.

Usage: python -m tests.support.dying_restore COMMAND …
"""

import os
import signal
import sys
from typing import Any

from switchyard.adapters.postgres.journal import PostgresJournal
from switchyard.adapters.sqlite.journal import SqliteJournal

COMMAND = [sys.executable, "-m", "tests.support.dying_restore"]


def die_after_commits(journal: type[Any]) -> None:
    """Kill the process after any of the journal's commits."""

    def dying(commit: Any) -> Any:
        async def committed_and_killed(*arguments: Any, **options: Any) -> Any:
            await commit(*arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)

        return committed_and_killed

    journal.append = dying(journal.append)
    journal.open_epoch = dying(journal.open_epoch)


if __name__ == "__main__":
    from switchyard.entrypoints.cli.main import run

    die_after_commits(SqliteJournal)
    die_after_commits(PostgresJournal)
    sys.argv = ["switchyard", *sys.argv[1:]]
    run()
