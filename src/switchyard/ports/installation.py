"""What an installation keeps outside its database, so that an older state of it or a second copy is noticed.

Calls block, so the flow runs them in a thread; they raise OSError while the place cannot be reached.
"""

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Protocol


class HeadFile(Protocol):
    """A copy of the journal's head: a small file, replaced as a whole."""

    @property
    def name(self) -> str:
        """The file's path, for messages."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether processes with other data folders and keys write it too; it may then be out of reach."""
        ...

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from writing between a read and a write; OSError if another one keeps it locked."""
        ...

    def read(self) -> bytes | None:
        """The content, or none if the file does not exist."""
        ...

    def write(self, content: bytes) -> None:
        """Replace the content durably; a crash leaves either the old content or the new."""
        ...

    def close(self) -> None:
        """Release what the calls need."""
        ...


class Lease(Protocol):
    """A name with one holder: which of the copies of a database may run."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def take(self, holder: str, ttl: timedelta) -> str:
        """Take the lease if it is free, or renew it; returns who holds it then."""
        ...

    def close(self) -> None:
        """Disconnect; the lease expires by itself."""
        ...
