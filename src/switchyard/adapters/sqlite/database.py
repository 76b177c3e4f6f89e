"""One SQLite file as journal, queries and liveness."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from switchyard.adapters.schema_files import check_version, programs, schema_files
from switchyard.adapters.sqlite.connections import Connections, connect, hold_alone
from switchyard.adapters.sqlite.journal import SqliteJournal
from switchyard.adapters.sqlite.keys import SqliteKeyStore
from switchyard.adapters.sqlite.queries import SqliteLanes, SqliteLiveness, SqliteQueries


class SqliteDatabase:
    """The embedded engine: durable, one process."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.journal = SqliteJournal(connections)
        self.queries = SqliteQueries(connections)
        self.liveness = SqliteLiveness()
        self.lanes = SqliteLanes()
        self.keys = SqliteKeyStore(connections, self.journal)

    @classmethod
    async def open(cls, path: Path) -> "SqliteDatabase":
        """Open the file for this process alone."""
        return await asyncio.to_thread(cls._open, path)

    @classmethod
    def _open(cls, path: Path) -> "SqliteDatabase":
        files = schema_files(__package__)
        connections = Connections(path)
        try:
            check_version(_version(connections.writer), len(files))
            return cls(connections)
        except BaseException:
            connections.close()
            raise

    @staticmethod
    async def is_new(path: Path) -> bool:
        """Whether the file is missing or empty, as a first start that was cut short leaves it."""
        return await asyncio.to_thread(_is_new, path)

    @staticmethod
    async def upgrade(path: Path) -> int:
        """Bring the file's schema to this version, all of it or nothing; returns the version."""
        return await asyncio.to_thread(_upgrade, path)

    def listen(self, callback: Callable[[], None]) -> None:
        """Nobody else writes to an embedded journal, so there is no news from outside."""

    async def close(self) -> None:
        """Finish what is being written and release the file."""
        await asyncio.to_thread(self._connections.close)


def _version(connection: apsw.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").get
    return version


@contextmanager
def _alone(path: Path) -> Iterator[apsw.Connection]:
    lock = hold_alone(path)
    try:
        with closing(connect(path)) as connection:
            yield connection
    finally:
        os.close(lock)


def _is_new(path: Path) -> bool:
    with _alone(path) as connection:
        # Version 0 alone does not say so: it is also what another program's database shows.
        return _version(connection) == 0 and connection.execute("SELECT count(*) FROM sqlite_schema").get == 0


def _upgrade(path: Path) -> int:
    files = schema_files(__package__)
    with _alone(path) as connection:
        found = _version(connection)
        if found > len(files):
            check_version(found, len(files))
        if found < len(files):
            with connection:
                for file in files[found:]:
                    connection.execute(file.sql)
                for program in programs(__package__):
                    connection.execute(program)
                connection.execute(f"PRAGMA user_version = {len(files)}")
        return len(files)
