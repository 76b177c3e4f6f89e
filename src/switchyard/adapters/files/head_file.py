"""ports.journal.HeadFile on the local disk, with a lock file beside it."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from switchyard.adapters.files.durable import lock_beside, replace_file

# A write takes milliseconds. A process that holds the lock for longer is paused, or its disk does not answer.
LOCK_SECONDS_MAX = 1.0
LOCK_PAUSE_SECONDS = 0.01


def head_path_of(audit_path: Path) -> Path:
    """The default path of an audit file's head."""
    return audit_path.with_name(audit_path.name + ".head")


class LocalHeadFile:
    """A head file; its thread lock lets calls follow a cancelled caller whose write still runs."""

    def __init__(self, path: Path, *, is_shared: bool = False) -> None:
        self._path = path
        self._is_shared = is_shared
        self._guard = threading.RLock()

    @property
    def name(self) -> str:
        """The file's path, for messages."""
        return str(self._path)

    @property
    def is_shared(self) -> bool:
        """Whether processes with other data folders and keys write it too."""
        return self._is_shared

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing; OSError if another one keeps the lock for LOCK_SECONDS_MAX."""
        with self._guard:
            descriptor = self._lock()
            try:
                yield
            finally:
                os.close(descriptor)

    def read(self) -> bytes | None:
        """The content, or none if the file does not exist."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def write(self, content: bytes) -> None:
        """Replace the content durably."""
        with self._guard:
            replace_file(self._path, content)

    def close(self) -> None:
        """Nothing is held between the calls."""

    def _lock(self) -> int:
        deadline = time.monotonic() + LOCK_SECONDS_MAX
        while (descriptor := lock_beside(self._path)) is None:
            if time.monotonic() >= deadline:
                raise BlockingIOError(f"another process holds {self._path}.lock: it is paused, or cannot write")
            time.sleep(LOCK_PAUSE_SECONDS)
        return descriptor
