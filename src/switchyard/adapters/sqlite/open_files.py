"""Notices that the files of an open SQLite database are no longer under their paths.

A commit is written to the WAL that was opened. If that file, the database or the shared index (`-shm`) is renamed,
removed or replaced meanwhile, SQLite goes on without an error, and what it commits is lost with the last open
descriptor, or not seen by other processes. SQLite itself removes the WAL and its index only when the last connection
closes, and shortens no file before that, so while a connection is open any such change comes from outside. A file that
got shorter was cut, or a copy is being written over it.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

from switchyard.domain.errors import JournalBroken

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
            found = _look(path)
            if opened is None or found is None or found[0] != opened[0]:
                return f"{os.fsdecode(path)} was moved, removed or replaced while this process had it open"
            if found[1] < self._sizes[number]:
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
