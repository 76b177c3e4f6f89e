"""ports.files.AuditFile on the local disk, with a lock file beside it.

A writer that was killed, or a power cut, can leave a torn last line or holes in lines that were not synced.
`recover` truncates them; the flow then appends them again from the journal.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import structlog

from switchyard.adapters.files.durable import FILE_MODE, lock_beside, sync_folder
from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.journal.lines import GENESIS, LINE_BYTES_MAX, LINE_START, parse_line
from switchyard.ports.journal import Head

log = structlog.get_logger()

# The first window usually holds all lines since the last sync; the bound is one second of writing at 60,000 lines.
TAIL_BYTES = 1 << 18
TAIL_BYTES_MAX = 1 << 26
READ_BUFFER_BYTES = 1 << 20


class LocalAuditFile:
    """An audit file; its thread lock lets calls follow a cancelled caller whose write still runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._lock: int | None = None
        self._descriptor: int | None = None
        self._size = 0
        self._size_synced = 0
        self._size_trusted: int | None = None

    @property
    def name(self) -> str:
        """The file's path, for messages."""
        return str(self._path)

    def lock(self) -> bool:
        """Make this process the only writer; false while another process is."""
        with self._guard:
            if self._lock is None:
                self._lock = lock_beside(self._path)
            return self._lock is not None

    def recover(self, durable_seq: int) -> Head:
        """Open for appending, truncate torn lines at the end, and return the last line's place."""
        with self._guard:
            self._close_file()
            is_new = not self._path.exists()
            descriptor = self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, FILE_MODE)
            if is_new:
                os.fchmod(descriptor, FILE_MODE)
                sync_folder(self._path.parent)
            size_found = os.fstat(descriptor).st_size
            # After a failed fsync the page cache may show bytes that never reached the disk.
            size = size_found if self._size_trusted is None else min(size_found, self._size_trusted)
            end, last = _tail(self._path, descriptor, size, durable_seq)
            if end < size_found:
                log.warning("audit_file_torn_tail_truncated", path=self.name, bytes=size_found - end)
                os.ftruncate(descriptor, end)
            os.fsync(descriptor)
            self._size = self._size_synced = end
            self._size_trusted = None
            return last

    def last(self) -> Head:
        """The last whole line's place, without a lock or a change; seq 0 if there is no file."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return Head(0, 0, GENESIS)
        try:
            _, last = _tail(self._path, descriptor, os.fstat(descriptor).st_size, 0)
            return last
        finally:
            os.close(descriptor)

    def moved_aside(self, epoch: int) -> Head:
        """The last line's place in the file that was renamed when the epoch began; seq 0 if there is no such file."""
        return LocalAuditFile(path_before(self._path, epoch)).last()

    def append(self, page: bytes) -> None:
        """Write whole lines; after an error only `recover` can tell how many were written."""
        with self._guard:
            descriptor = self._checked_descriptor()
            rest = memoryview(page)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            self._size += len(page)

    def sync(self) -> None:
        """Make all appended lines durable."""
        with self._guard:
            try:
                os.fsync(self._checked_descriptor())
            except OSError:
                self._size_trusted = self._size_synced
                raise
            self._size_synced = self._size

    def close(self) -> None:
        """Close the file and release the lock."""
        with self._guard:
            self._close_file()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def lines(self) -> Iterator[bytes]:
        """All lines with their line ends; the file is closed when the iterator ends or is dropped."""
        with self._path.open("rb", buffering=READ_BUFFER_BYTES) as file:
            while raw := file.readline(LINE_BYTES_MAX):
                yield raw

    def _checked_descriptor(self) -> int:
        """The descriptor, if the path still names our file and its size is the one that we wrote."""
        assert self._descriptor is not None, "recover() opens the file"
        at_path, opened = self._path.stat(), os.fstat(self._descriptor)
        if not os.path.samestat(at_path, opened) or at_path.st_size != self._size:
            raise OSError(f"{self._path} was moved, replaced or changed by another program")
        return self._descriptor

    def _close_file(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def path_before(path: Path, epoch: int) -> Path:
    """The name that a file of the journal gets when a new epoch begins."""
    return path.with_name(f"{path.name}.before-epoch-{epoch}")


def _tail(path: Path, descriptor: int, size: int, durable_seq: int) -> tuple[int, Head]:
    """The end of the last good line and its place; reads back to `durable_seq`, at most TAIL_BYTES_MAX."""
    window = TAIL_BYTES
    while True:
        start = max(size - window, 0)
        data = os.pread(descriptor, size - start, start)
        position = data.find(b"\n") + 1 if start else 0
        end, last = position, None
        while stop := data.find(b"\n", position) + 1:
            try:
                line = parse_line(data[position:stop])
            except ValueError as error:
                if last is None and start and window < TAIL_BYTES_MAX:
                    break  # there may be a good line before this window
                if last is None or last.seq < durable_seq:
                    raise HistoryMismatch(
                        f"{path}, at byte {start + position}: {error}; move the file aside and start again: "
                        "it is then written again from the journal"
                    ) from None
                break  # a power cut may leave holes in lines that were not synced
            if last is None and start and line.seq > durable_seq and window < TAIL_BYTES_MAX:
                break  # the lines that were not synced begin before this window
            end, last = stop, Head(line.epoch, line.seq, line.hash)
            position = stop
        if last is not None:
            return start + end, last
        if not start:
            _check_first_line(path, data)
            return 0, Head(0, 0, GENESIS)
        if window >= TAIL_BYTES_MAX:
            raise HistoryMismatch(f"{path} is not an audit file: it has no line end in its last {TAIL_BYTES_MAX} bytes")
        window *= 4


def _check_first_line(path: Path, data: bytes) -> None:
    """Raise HistoryMismatch unless the data is the start of a line: a mistyped path must not truncate another file."""
    found = data.rstrip(b"\0")[: len(LINE_START)]
    if not LINE_START.startswith(found):
        raise HistoryMismatch(f"{path} is not an audit file: check GATEWAY_AUDIT_PATH")
