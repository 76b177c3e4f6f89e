"""The connections to one SQLite file: a writer thread, reader threads, a checkpointer thread, and the file lock."""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import apsw
import structlog

from switchyard.adapters.files.lock import lock_beside
from switchyard.adapters.files.private import create_file
from switchyard.adapters.sqlite.identity import FileIdentity
from switchyard.domain.errors import AlreadyRunning, CannotStart, SchemaMismatch

T = TypeVar("T")
log = structlog.get_logger()

# More threads would only compete for the GIL; with two, a slow page does not block a lookup.
READERS = 2
# 64 MiB of WAL: recovery stays short, and a page that changes often is written to the database once per checkpoint.
CHECKPOINT_PAGES = 16_000
# Under continuous load a passive checkpoint never completes; at 256 MiB the writer waits for one that does.
CHECKPOINT_PAGES_MAX = 65_000
# The writer waits for a RESTART checkpoint, which itself waits for readers: a minute bounds that wait.
BUSY_MILLISECONDS = 60_000


def connect(path: Path, *, readonly: bool = False) -> apsw.Connection:
    """A connection whose commits are durable: WAL with `synchronous = FULL`, as a 202 response promises."""
    flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    if readonly and not path.exists():
        raise no_database(path)
    if not readonly:
        # SQLite gives the WAL and the index of it the mode of the database.
        create_file(path)
    connection = apsw.Connection(str(path), flags=flags)
    connection.set_busy_timeout(BUSY_MILLISECONDS)
    if not readonly:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except apsw.NotADBError:
            raise SchemaMismatch(f"{path} is not a SQLite database") from None
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA cache_size = -65536")
    return connection


def no_database(path: Path) -> CannotStart:
    """The error of a command that needs an existing database."""
    return CannotStart(
        f"there is no database {path.absolute()}; set SWITCHYARD_DATA_DIR to the gateway's data folder, or start "
        "`switchyard up` first, which creates it"
    )


def hold_alone(path: Path) -> int:
    """Lock the file for this process; the kernel releases the lock when the process ends, even after SIGKILL."""
    descriptor = lock_beside(path)
    if descriptor is None:
        raise AlreadyRunning(
            f"another process is using {path}, and a SQLite database serves one process: "
            "stop the other process, or set SWITCHYARD_DATABASE_URL to run several on PostgreSQL"
        )
    return descriptor


class Connections:
    """The threads and connections of one open database file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = hold_alone(path)
        try:
            self.writer = connect(path)
        except BaseException:
            os.close(self._lock)
            raise
        self.file = FileIdentity(path)
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer")
        self._reading = ThreadPoolExecutor(READERS, thread_name_prefix="sqlite-reader")
        self._local = threading.local()
        self._wal_pages = 0
        self._wal_grew = threading.Event()
        self._closing = False
        self.writer.set_wal_hook(self._on_commit)
        self._checkpointer = threading.Thread(target=self._checkpoint, name="sqlite-checkpointer", daemon=True)
        self._checkpointer.start()

    async def write(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run in the writer thread."""
        return await asyncio.get_running_loop().run_in_executor(self._writing, work, self.writer)

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run in a reader thread, in parallel with the writer."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, self._with_reader, work)

    def close(self) -> None:
        """Stop the threads, checkpoint the WAL into the file, release the lock."""
        self._writing.shutdown()
        self._reading.shutdown()
        self._closing = True
        self._wal_grew.set()
        self._checkpointer.join()
        try:
            self.writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as error:
            # The next start recovers from the WAL.
            log.warning("wal_checkpoint_at_close_failed", path=str(self._path), error=str(error))
        self.writer.close()
        os.close(self._lock)

    def _with_reader(self, work: Callable[[apsw.Connection], T]) -> T:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = connect(self._path, readonly=True)
        return work(connection)

    def _on_commit(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._wal_pages = pages
        if pages >= CHECKPOINT_PAGES:
            self._wal_grew.set()
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        connection = connect(self._path)
        while True:
            self._wal_grew.wait()
            self._wal_grew.clear()
            if self._closing:
                connection.close()
                return
            full = self._wal_pages >= CHECKPOINT_PAGES_MAX
            mode = apsw.SQLITE_CHECKPOINT_RESTART if full else apsw.SQLITE_CHECKPOINT_PASSIVE
            try:
                connection.wal_checkpoint(mode=mode)
            except apsw.Error as error:
                # The next checkpoint continues where this one stopped.
                log.warning("wal_checkpoint_failed", path=str(self._path), error=str(error))
