"""One SQLite file behind all database ports: opens the file, checks its schema, builds the adapters."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path

from switchyard.adapters.queries import SqlAccounts, SqlKills, SqlQueries, SqlStrategyOrders
from switchyard.adapters.sqlite import migrations
from switchyard.adapters.sqlite.connections import Connections, no_database
from switchyard.adapters.sqlite.journal import SqliteJournal, SqliteRelayLeases, SqliteTime
from switchyard.adapters.sqlite.liveness import SqliteLanes, SqliteLiveness, SqliteVenueSessions
from switchyard.adapters.sqlite.queries import SqliteKeyStore, SqliteSession
from switchyard.adapters.system_clock import SystemClock, boot_id


class SqliteDatabase:
    """The embedded engine: durable, for one process."""

    def __init__(self, connections: Connections, path: Path, *, readonly: bool = False) -> None:
        self._connections = connections
        self._path = path
        self.journal = SqliteJournal(connections)
        session = SqliteSession(connections)
        self.queries = SqlQueries(session)
        self.kills = SqlKills(session)
        self.strategy_orders = SqlStrategyOrders(session)
        self.accounts = SqlAccounts(session)
        self.liveness = SqliteLiveness()
        self.relay_leases = SqliteRelayLeases(connections, self.journal)
        self.lanes = SqliteLanes()
        self.sessions = SqliteVenueSessions()
        self.keys = SqliteKeyStore(connections, self.journal)
        self.time = SqliteTime(connections, self.journal, SystemClock(), follows=readonly)

    @classmethod
    async def open(cls, path: Path) -> "SqliteDatabase":
        """Open the file and lock it for this process."""
        return await asyncio.to_thread(cls._open, path)

    @classmethod
    async def open_readonly(cls, path: Path) -> "SqliteDatabase":
        """Open the file for reads beside the process that writes to it; every write fails."""
        return await asyncio.to_thread(cls._open, path, readonly=True)

    @classmethod
    def _open(cls, path: Path, *, readonly: bool = False) -> "SqliteDatabase":
        if not path.exists():
            raise no_database(path)
        connections = Connections(path, readonly=readonly)
        try:
            migrations.check(connections.writer)
            return cls(connections, path, readonly=readonly)
        except BaseException:
            connections.close()
            raise

    @staticmethod
    async def is_new(path: Path) -> bool:
        """Whether the file is missing or has no schema."""
        return await asyncio.to_thread(migrations.is_new, path)

    @staticmethod
    async def upgrade(path: Path) -> int:
        """Bring the file's schema to this version, completely or not at all; returns the version."""
        return await asyncio.to_thread(migrations.upgrade, path)

    async def identity(self) -> str:
        """The file itself, which the file lock gives to one process, and the machine since its last start."""
        file = await asyncio.to_thread(self._path.stat)
        return f"{socket.gethostname()}:{self._path.absolute()} (boot {boot_id()}, file {file.st_dev}:{file.st_ino})"

    def listen(self, callback: Callable[[], None]) -> None:
        """Does nothing: no other process writes to an embedded journal."""

    def on_held_wal(self, callback: Callable[[], None]) -> None:
        """Call back in the event loop while a reader keeps the WAL from being restarted."""
        loop = asyncio.get_running_loop()

        def held() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(callback)

        self._connections.on_held_wal = held

    def longest_read_seconds(self) -> float:
        """How long the oldest read under way has lasted, in a process that only reads."""
        return self._connections.longest_read_seconds()

    async def close(self) -> None:
        """Finish the write in progress and release the file."""
        await asyncio.to_thread(self._connections.close)
