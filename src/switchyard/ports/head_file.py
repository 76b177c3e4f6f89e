"""The head file: a copy of the journal's head outside the database."""

from contextlib import AbstractContextManager
from typing import Protocol


class HeadFile(Protocol):
    """A small file, replaced as a whole. Calls block, so the flow runs them in a thread; I/O failures raise OSError."""

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
