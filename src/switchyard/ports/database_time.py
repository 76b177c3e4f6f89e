"""The port of the times that a database knows: its wall clock, its newest event, and the time of its processes."""

from datetime import datetime, timedelta
from typing import Protocol

import msgspec


class StoredTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time that the processes had at one moment, for a process that starts later."""

    ahead: timedelta
    """The processes' time minus the database's wall clock, both at `written_at`."""
    written_at: datetime
    """By the database's wall clock, in the same reading as `ahead`."""
    boot_id: str | None
    """Of the machine of the process that wrote it, since its last boot; None where the system has no such id."""
    boot_seconds: float
    """On that machine's clock since its boot, at `written_at`."""
    jumped_at: datetime | None
    """The processes' time right after it last went forward by more than was measured; see `Clock.jumped_at`."""
    stepped_ahead: timedelta = timedelta()
    """How much of that has certainly not passed; see `Clock.stepped_ahead`."""


class TimeReading(msgspec.Struct, frozen=True):
    """The times that a database knows at one moment."""

    wall: datetime
    """The database's wall clock, which can be stepped."""
    newest_event_at: datetime | None
    stored: StoredTime | None
    """None before the first `store`."""


class DatabaseTime(Protocol):
    """The database's wall clock, and the time of its processes."""

    is_shared: bool
    """Whether several processes can use the database at once."""

    async def read(self) -> TimeReading:
        """Return the database's times."""
        ...

    async def store(self, time: StoredTime, *, read: StoredTime | None) -> bool:
        """Replace the time that was read; returns False, and changes nothing, if another process has replaced it."""
        ...
