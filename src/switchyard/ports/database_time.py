"""The port of the times that a database knows: its wall clock, its newest event, and the offset of its processes."""

from datetime import datetime, timedelta
from typing import Protocol

import msgspec


class SharedOffset(msgspec.Struct, frozen=True):
    """The difference between the time of the running processes and the database's wall clock."""

    ahead: timedelta
    written_at: datetime
    """By the database's wall clock."""


class TimeReading(msgspec.Struct, frozen=True):
    """The times that a database knows at one moment."""

    wall: datetime
    """The database's wall clock, which can be stepped."""
    newest_event_at: datetime | None
    shared: SharedOffset | None
    """None where only one process can use the database, and before the first `share`."""


class DatabaseTime(Protocol):
    """The database's wall clock, and the offset that its processes share."""

    async def read(self) -> TimeReading:
        """Return the database's times."""
        ...

    async def share(self, ahead: timedelta) -> None:
        """Store how far this process's time is ahead of the database's wall clock, for processes that start later."""
        ...
