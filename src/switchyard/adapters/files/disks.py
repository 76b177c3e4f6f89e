"""Measures the file systems of a process's folders."""

import asyncio
import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from switchyard.ports.files import DiskSpace


class LocalDisks:
    """ports.disk.Disks over folders of this machine."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = dict(folders)

    async def measure(self) -> Mapping[str, DiskSpace]:
        """The space of each folder, in a thread: a network file system may not answer."""
        return await asyncio.to_thread(self._measure)

    def _measure(self) -> dict[str, DiskSpace]:
        found: dict[str, DiskSpace] = {}
        for name, folder in self._folders.items():
            with contextlib.suppress(OSError):
                usage = shutil.disk_usage(_existing(folder))
                found[name] = DiskSpace(usage.free, usage.total)
        return found


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it: it may be created later."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
