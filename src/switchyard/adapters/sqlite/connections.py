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
from switchyard.adapters.sqlite.open_files import OpenFiles
from switchyard.domain.errors import AlreadyRunning, CannotStart, SchemaMismatch

T = TypeVar("T")
log = structlog.get_logger()

# More threads would only compete for the GIL; with two, a slow page does not block a lookup.
READERS = 2
# 64 MiB of WAL: recovery stays short, and a page that changes often is written to the database once per checkpoint.
CHECKPOINT_PAGES = 16_000
# SQLite restarts the WAL only when all of it is copied, and under continuous load every checkpoint misses the commits
# made during it: at 256 MiB the writer thread copies the rest.
CHECKPOINT_PAGES_MAX = 64_000
# Reading the size of the WAL takes a microsecond; on a fast disk it grows by some tens of MiB in this time.
LOOK_SECONDS = 0.25
# A checkpoint fails as long as the disk is full: one warning per this time.
RETRY_SECONDS = 5.0
# Commits wait for readers this long, once per restart of the WAL: enough for a page, not for a backup.
RESTART_MILLISECONDS_MAX = 100
# Another program can hold the writer lock, for example a checkpoint by hand.
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
        # SQLite waits for the lock of another writer only if the transaction has not read anything yet.
        connection.transaction_mode = "IMMEDIATE"
        # The first read creates the WAL and its index, also of a new file.
        connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
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
            self._files = OpenFiles(path)
        except BaseException:
            os.close(self._lock)
            raise
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer")
        self._reading = ThreadPoolExecutor(READERS, thread_name_prefix="sqlite-reader")
        self._local = threading.local()
        self._closing = threading.Event()
        self._checkpointer = threading.Thread(target=self._run_checkpoints, name="sqlite-checkpointer", daemon=True)
        self._checkpointer.start()

    async def write(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run in the writer thread; raises JournalBroken if the files were replaced before the work was done."""
        return await asyncio.get_running_loop().run_in_executor(self._writing, self._with_writer, work)

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run in a reader thread, in parallel with the writer; raises JournalBroken as `write` does."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, self._with_reader, work)

    def close(self) -> None:
        """Stop the threads, checkpoint the WAL into the file, release the lock."""
        self._closing.set()
        self._checkpointer.join()  # first, because it may wait for the writer thread
        self._writing.shutdown()
        self._reading.shutdown()
        try:
            self.writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as error:
            # The next start recovers from the WAL.
            log.warning("wal_checkpoint_at_close_failed", path=str(self._path), error=str(error))
        self.writer.close()
        os.close(self._lock)

    def _with_writer(self, work: Callable[[apsw.Connection], T]) -> T:
        # After the work: what was committed to files that are still in their place then was committed to them.
        try:
            return work(self.writer)
        finally:
            self._files.check()

    def _with_reader(self, work: Callable[[apsw.Connection], T]) -> T:
        try:
            connection = getattr(self._local, "connection", None)
            if connection is None:
                connection = self._local.connection = connect(self._path, readonly=True)
            return work(connection)
        finally:
            self._files.check()

    def _run_checkpoints(self) -> None:
        connection: apsw.Connection | None = None
        pause = LOOK_SECONDS
        while not self._closing.wait(pause):
            try:
                connection = connection or connect(self._path)
                self._checkpoint(connection)
                pause = LOOK_SECONDS
            except apsw.Error as error:
                # The next checkpoint continues where this one stopped.
                log.warning("wal_checkpoint_failed", path=str(self._path), error=str(error))
                pause = RETRY_SECONDS
        if connection is not None:
            connection.close()

    def _checkpoint(self, connection: apsw.Connection) -> None:
        """Copy the WAL into the database if it has grown, without a lock that a commit needs."""
        pages, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        if pages - copied < CHECKPOINT_PAGES:
            return
        pages, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        # A reader's snapshot can keep pages from being copied: the WAL grows until its transaction has ended. What only
        # the newest commits and short reads have kept from it is copied by the restart.
        if pages >= CHECKPOINT_PAGES_MAX and pages - copied < CHECKPOINT_PAGES:
            self._writing.submit(self._restart_wal).result()

    def _restart_wal(self) -> None:
        """Copy what was committed meanwhile, so that the next commit restarts the WAL; in the writer thread."""
        self.writer.set_busy_timeout(RESTART_MILLISECONDS_MAX)
        try:
            self.writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        finally:
            self.writer.set_busy_timeout(BUSY_MILLISECONDS)
