"""Notices that the files of an open SQLite database are no longer under their paths.

A commit is written to the WAL that was opened. If that file, the database or the shared index (`-shm`) is renamed,
removed or replaced meanwhile, SQLite goes on without an error, and what it commits is lost with the last open
descriptor, or not seen by other processes. SQLite itself removes the WAL and its index only when the last connection
closes, so while a connection is open any change of these files comes from outside.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from switchyard.domain.errors import JournalBroken

SUFFIXES = ("", "-wal", "-shm")

_AT_FDCWD = -100
_STATX_INO = 0x100
# The layout of `struct statx` is the same on every architecture: the inode number, the device's major and minor number.
_STATX_SIZE = 256
_INODE = slice(32, 40)
_DEVICE = slice(136, 144)


class OpenFiles:
    """The files of an open database as they were when it was opened; made after the first read of the database."""

    def __init__(self, path: Path) -> None:
        self._paths = [os.fsencode(path.absolute()) + suffix.encode() for suffix in SUFFIXES]
        self._opened = [_identity(path) for path in self._paths]

    @property
    def problem(self) -> str | None:
        """Which file is no longer under its path; None while all are."""
        for path, opened in zip(self._paths, self._opened, strict=True):
            if opened is None or _identity(path) != opened:
                return f"{os.fsdecode(path)} was moved, removed or replaced while this process had it open"
        return None

    def check(self) -> None:
        """Raise JournalBroken if a file is no longer under its path."""
        problem = self.problem
        if problem is not None:
            raise JournalBroken(
                f"{problem}: what it wrote last may be lost, and nothing more is written. If an older file was "
                "restored, run `switchyard db restored` before the next start"
            )


def _stat(path: bytes) -> object:
    try:
        found = Path(os.fsdecode(path)).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _statx() -> Callable[[bytes], object]:
    """Return a look at a file that keeps the interpreter lock.

    `os.stat` releases the lock, and under load a thread waits for milliseconds to get it back; this takes 2 µs.
    """
    # PyDLL, not CDLL: a call through it does not release the lock.
    statx = ctypes.PyDLL(None).statx
    buffer_type = ctypes.c_char * _STATX_SIZE

    def look(path: bytes) -> object:
        found = buffer_type()
        if statx(_AT_FDCWD, path, 0, _STATX_INO, found):
            return None
        return found.raw[_DEVICE], found.raw[_INODE]

    return look


try:
    _identity = _statx()
except AttributeError:  # not Linux, or a C library without it
    _identity = _stat
