"""Files and disks: the audit file and the space that is left."""

from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

from switchyard.ports.journal import Head


class AuditFile(Protocol):
    """A file of journal lines. Calls block, so the flow runs them in a thread; I/O failures raise OSError."""

    @property
    def name(self) -> str:
        """The file's path, for messages."""

    def lock(self) -> bool:
        """Make this process the only writer; false while another process is."""

    def recover(self, durable_seq: int) -> Head:
        """Open for appending, truncate torn lines at the end, and return the last line's place.

        Lines up to `durable_seq` were synced before: if one of them is unreadable, raises HistoryMismatch.
        """

    def moved_aside(self, epoch: int) -> Head:
        """The last line's place in the file that was renamed when the epoch began; seq 0 if there is no such file."""

    def append(self, page: bytes) -> None:
        """Write whole lines; after an error only `recover` can tell how many were written."""

    def sync(self) -> None:
        """Make all appended lines durable."""

    def close(self) -> None:
        """Close the file and release the lock."""

    def lines(self) -> Iterator[bytes]:
        """All lines with their line ends, in pieces of at most LINE_BYTES_MAX; needs no lock."""


class DiskSpace(msgspec.Struct, frozen=True):
    """The file system of one folder, in bytes."""

    free: int
    """What this process may still write; a part may be reserved for the superuser."""
    size: int


class Disks(Protocol):
    """The folders of a process, by what they hold."""

    async def measure(self) -> Mapping[str, DiskSpace]:
        """Return the space of each folder; one that cannot be measured is left out."""
