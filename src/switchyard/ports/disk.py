"""The port that measures the disks on which a process writes."""

from collections.abc import Mapping
from typing import Protocol

import msgspec


class DiskSpace(msgspec.Struct, frozen=True):
    """The file system of one folder, in bytes."""

    free: int
    """What this process may still write; a part may be reserved for the superuser."""
    size: int


class Disks(Protocol):
    """The folders of a process, by what they hold."""

    async def measure(self) -> Mapping[str, DiskSpace]:
        """Return the space of each folder; one that cannot be measured is left out."""
        ...
