"""Connections: one writer in a thread of its own, a few readers, a checkpointer, and a lock against company."""

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
from switchyard.domain.errors import AlreadyRunning, SchemaMismatch

T = TypeVar("T")
log = structlog.get_logger()

# More threads would only hand the interpreter's lock around; two keep a slow page from blocking a lookup.
READERS = 2
# 64 MiB of log: recovery stays short, and a hot page is written once for many changes of it.
CHECKPOINT_PAGES = 16_000
# Under load without a pause a passive checkpoint never reaches the end; at 256 MiB the writer waits for one that does.
CHECKPOINT_PAGES_MAX = 65_000
BUSY_MILLISECONDS = 60_000


def connect(path: Path, *, readonly: bool = False) -> apsw.Connection:
    """A connection with the durability that a 202 promises."""
    flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
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


def hold_alone(path: Path) -> int:
    """Lock the database for this process; the lock dies with it, however it dies."""
    descriptor = lock_beside(path)
    if descriptor is None:
        raise AlreadyRunning(
            f"another process is using {path}: SQLite serves one process; "
            "stop the other one, or use PostgreSQL (SWITCHYARD_DATABASE_URL) to run several"
        )
    return descriptor


class Connections:
    """The threads of one database file; everything that touches it goes through here."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = hold_alone(path)
        try:
            self.writer = connect(path)
        except BaseException:
            os.close(self._lock)
            raise
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer")
        self._reading = ThreadPoolExecutor(READERS, thread_name_prefix="sqlite-reader")
        self._local = threading.local()
        self._log_pages = 0
        self._log_grew = threading.Event()
        self._closing = False
        self.writer.set_wal_hook(self._note_log)
        self._checkpointer = threading.Thread(target=self._checkpoint, name="sqlite-checkpointer", daemon=True)
        self._checkpointer.start()

    async def write(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run in the writer's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._writing, work, self.writer)

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run in a reader's thread, beside the writer."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, self._with_reader, work)

    def close(self) -> None:
        """End the threads, fold the log into the file, release the lock."""
        self._writing.shutdown()
        self._reading.shutdown()
        self._closing = True
        self._log_grew.set()
        self._checkpointer.join()
        try:
            self.writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as error:
            log.warning("the log was not folded into the database; the next start does it", error=str(error))
        self.writer.close()
        os.close(self._lock)

    def _with_reader(self, work: Callable[[apsw.Connection], T]) -> T:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = connect(self._path, readonly=True)
        return work(connection)

    def _note_log(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._log_pages = pages
        if pages >= CHECKPOINT_PAGES:
            self._log_grew.set()
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        connection = connect(self._path)
        while True:
            self._log_grew.wait()
            self._log_grew.clear()
            if self._closing:
                connection.close()
                return
            full = self._log_pages >= CHECKPOINT_PAGES_MAX
            mode = apsw.SQLITE_CHECKPOINT_RESTART if full else apsw.SQLITE_CHECKPOINT_PASSIVE
            try:
                connection.wal_checkpoint(mode=mode)
            except apsw.Error as error:
                log.warning("checkpoint failed; the next one goes on", error=str(error))
