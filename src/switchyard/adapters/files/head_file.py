"""ports.head_file.HeadFile on the local disk, with a lock file beside it."""

import os
import threading
from pathlib import Path

from switchyard.adapters.files.durable import replace_file
from switchyard.adapters.files.lock import lock_beside


def head_path_of(audit_path: Path) -> Path:
    """The default path of an audit file's head."""
    return audit_path.with_name(audit_path.name + ".head")


class LocalHeadFile:
    """A head file; its thread lock lets calls follow a cancelled caller whose write still runs."""

    def __init__(self, path: Path, *, is_shared: bool = False) -> None:
        self._path = path
        self._is_shared = is_shared
        self._guard = threading.Lock()
        self._lock: int | None = None

    @property
    def name(self) -> str:
        """The file's path, for messages."""
        return str(self._path)

    @property
    def is_shared(self) -> bool:
        """Whether processes with other data folders and keys write it too."""
        return self._is_shared

    def lock(self) -> bool:
        """Make this process the only writer; false while another process is."""
        with self._guard:
            if self._lock is None:
                self._lock = lock_beside(self._path)
            return self._lock is not None

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
        """Release the lock."""
        with self._guard:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None
