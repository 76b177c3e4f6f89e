"""Connections to one SQLite file: a writer thread, readers, and a watch on the files that are open."""

import asyncio
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw
import structlog

from switchyard.adapters.files.durable import create_file, lock_beside
from switchyard.adapters.threads import WorkerThreads
from switchyard.domain.errors import AlreadyRunning, CannotStart, JournalBroken, JournalUnavailable, SchemaMismatch

SUFFIXES = ("", "-wal", "-shm")

_AT_FDCWD = -100
_STATX_INO_AND_SIZE = 0x100 | 0x200
# The layout of `struct statx` is the same on every architecture: the inode number, the device's major and minor number.
_STATX_SIZE = 256
_INODE = slice(32, 40)
_SIZE = slice(40, 48)
_DEVICE = slice(136, 144)


class OpenFiles:
    """The files of an open database as they were when it was opened; made after the first read of the database."""

    def __init__(self, path: Path) -> None:
        self._paths = [os.fsencode(path.absolute()) + suffix.encode() for suffix in SUFFIXES]
        self._opened = [_look(path) for path in self._paths]
        self._sizes = [0 if look is None else look[1] for look in self._opened]

    @property
    def problem(self) -> str | None:
        """Which file is no longer under its path, or got shorter; None while all are as they should be."""
        for number, (path, opened) in enumerate(zip(self._paths, self._opened, strict=True)):
            # Read before the look: meanwhile another thread may have seen the file grow, and noted that.
            known = self._sizes[number]
            found = _look(path)
            if opened is None or found is None or found[0] != opened[0]:
                return f"{os.fsdecode(path)} was moved, removed or replaced while this process had it open"
            if found[1] < known:
                return f"{os.fsdecode(path)} got shorter while this process had it open"
            self._sizes[number] = found[1]
        return None

    def check(self) -> None:
        """Raise JournalBroken if a file is no longer under its path."""
        problem = self.problem
        if problem is not None:
            raise JournalBroken(
                f"{problem}: what it wrote last may be lost, and nothing more is written. If an older file was "
                "restored, run `switchyard db restored` before the next start"
            )


Look = tuple[object, int]
"""The identity of a file, and its size."""


def _stat(path: bytes) -> Look | None:
    try:
        found = Path(os.fsdecode(path)).stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino), found.st_size


def _statx() -> Callable[[bytes], Look | None]:
    """Return a look at a file that keeps the interpreter lock.

    `os.stat` releases the lock, and under load a thread waits for milliseconds to get it back; this takes 2 µs.
    """
    # PyDLL, not CDLL: a call through it does not release the lock.
    statx = ctypes.PyDLL(None).statx
    buffer_type = ctypes.c_char * _STATX_SIZE

    def look(path: bytes) -> Look | None:
        found = buffer_type()
        if statx(_AT_FDCWD, path, 0, _STATX_INO_AND_SIZE, found):
            return None
        raw = found.raw
        return (raw[_DEVICE], raw[_INODE]), int.from_bytes(raw[_SIZE], sys.byteorder)

    return look


try:
    _look = _statx()
except AttributeError:  # not Linux, or a C library without it
    _look = _stat


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
# The longest rest after a read in a process that only reads: nothing there should take longer.
REST_SECONDS_MAX = 1.0
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


def create_schema(connection: apsw.Connection, sql: str, version: int, problem: str, remedy: str = "") -> None:
    """Create the schema in a new file; another version raises SchemaMismatch with the problem and what to do."""
    with connection:
        found = connection.pragma("user_version")
        if found == version:
            return
        if found or connection.execute("SELECT count(*) FROM sqlite_schema").get:
            raise SchemaMismatch(f"{problem} of this version (schema {found}, needed {version}){remedy}")
        connection.execute(sql)
        connection.pragma("user_version", version)


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

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self._path = path
        self._readonly = readonly
        self._lock = None if readonly else hold_alone(path)
        try:
            self.writer = connect(path, readonly=readonly)
            self._files = OpenFiles(path)
        except BaseException:
            self._release()
            raise
        self.on_held_wal: Callable[[], None] | None = None
        """Called in the checkpointer thread while a reader keeps most of the WAL from being copied or restarted."""
        self._read_since: float | None = None
        self._writing = WorkerThreads("sqlite-writer")
        # In a process that only reads, one after the other, with rests: see `_watched`.
        self._reading = WorkerThreads("sqlite-reader", 1 if readonly else READERS)
        self._local = threading.local()
        self._closing = threading.Event()
        self._checkpointer: threading.Thread | None = None
        if not readonly:
            self._checkpointer = threading.Thread(target=self._run_checkpoints, name="sqlite-checkpointer", daemon=True)
            self._checkpointer.start()

    def write(self, work: Callable[[apsw.Connection], T]) -> "asyncio.Future[T]":
        """Run in the writer thread; raises JournalBroken if the files were replaced before the work was done."""
        return self._writing.call(self._with_writer, work)

    def read(self, work: Callable[[apsw.Connection], T]) -> "asyncio.Future[T]":
        """Run in a reader thread, in parallel with the writer; raises JournalBroken as `write` does."""
        return self._reading.call(self._with_reader, work)

    def close(self) -> None:
        """Stop the threads, checkpoint the WAL into the file, release the lock."""
        self._closing.set()
        if self._checkpointer is not None:
            self._checkpointer.join()  # first, because it may wait for the writer thread
        self._writing.shutdown()
        self._reading.shutdown()
        if not self._readonly:
            try:
                self.writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.Error as error:
                # The next start recovers from the WAL.
                log.warning("wal_checkpoint_at_close_failed", path=str(self._path), error=str(error))
        self.writer.close()
        self._release()

    def longest_read_seconds(self) -> float:
        """How long the read under way has lasted, in a process that only reads; 0 if there is none."""
        since = self._read_since
        return 0.0 if since is None else time.monotonic() - since

    def _release(self) -> None:
        if self._lock is not None:
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
            return self._watched(work, connection) if self._readonly else work(connection)
        finally:
            self._files.check()

    def _watched(self, work: Callable[[apsw.Connection], T], connection: apsw.Connection) -> T:
        """Read in a process that does not write.

        The writer's WAL is restarted only between such reads: each is followed by a rest as long as itself.
        """
        self._read_since = began = time.monotonic()
        try:
            return work(connection)
        finally:
            self._read_since = None
            if connection.txn_state("main") != apsw.SQLITE_TXN_NONE:
                connection.close(force=True)
                self._local.connection = None
                raise JournalUnavailable(f"a read of {self._path} left its transaction open: this is a defect")
            time.sleep(min(time.monotonic() - began, REST_SECONDS_MAX))

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
        is_held = pages - copied >= CHECKPOINT_PAGES
        try:
            if pages >= CHECKPOINT_PAGES_MAX and not is_held:
                self._writing.call_and_wait(self._restart_wal)
        except apsw.BusyError:
            is_held = True
            raise
        finally:
            if is_held and self.on_held_wal is not None:
                self.on_held_wal()

    def _restart_wal(self) -> None:
        """Copy what was committed meanwhile, so that the next commit restarts the WAL; in the writer thread."""
        self.writer.set_busy_timeout(RESTART_MILLISECONDS_MAX)
        try:
            self.writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        finally:
            self.writer.set_busy_timeout(BUSY_MILLISECONDS)
