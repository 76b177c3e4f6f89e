"""Backups of the database of a process that is not running, and their restore."""

import json
import shutil
from pathlib import Path

from tests.support.evidence import tool_settings
from tests.support.postgres import PostgresServer
from tests.support.process import Process, run_command

SQLITE_FILES = ("switchyard.db", "switchyard.db-wal", "switchyard.db-shm")


class SqliteBackup:
    """The database files of the process in this folder; restoring leaves its other files as they are."""

    def __init__(self, folder: Path) -> None:
        self._live = folder / "var"
        self._backup = folder / "backup"

    def take(self) -> None:
        self._copy(self._live, self._backup)

    def restore(self) -> None:
        self._copy(self._backup, self._live)

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        for name in SQLITE_FILES:
            (target / name).unlink(missing_ok=True)
            if (source / name).exists():
                shutil.copy(source / name, target / name)


class PostgresBackup:
    """A dump of one database."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self._server = server
        self._url = url

    def take(self) -> None:
        self._dump = self._server.dump(self._url)

    def restore(self) -> None:
        self._server.restore(self._url, self._dump)


def declare_restored(process: Process) -> dict[str, int]:
    """Run `switchyard db restored`, which starts a new epoch; returns the epoch and the number of rows in doubt."""
    ended = run_command("db", "restored", "--json", **tool_settings(process))
    assert ended.returncode == 0, ended.stderr
    declared: dict[str, int] = json.loads(ended.stdout)
    return declared
