"""A SQLite VFS whose writes and fsyncs fail on demand."""

from typing import Any

import apsw

FAILING = "failing"
BASE = "unix"


class FailingFile(apsw.VFSFile):
    """A file of the real file system that fails while its disk is set to fail."""

    def __init__(self, disk: "FailingDisk", name: Any, flags: list[int]) -> None:
        super().__init__(BASE, name, flags)
        self._disk = disk

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self._disk.sync_fails:
            raise apsw.IOError("fsync failed")
        super().xSync(flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        if self._disk.is_full:
            raise apsw.FullError("no space left")
        super().xWrite(data, offset)


class FailingDisk(apsw.VFS):
    """Registers itself as the default VFS, for every file opened until `unregister`."""

    def __init__(self) -> None:
        self.sync_fails = False
        self.is_full = False
        super().__init__(FAILING, BASE, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> FailingFile:  # noqa: N802
        return FailingFile(self, name, flags)
