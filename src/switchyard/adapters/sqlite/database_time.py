"""The machine's wall clock: an embedded database has no other, and no second process to share an offset with."""

from datetime import timedelta

from switchyard.adapters.sqlite.journal import SqliteJournal
from switchyard.ports.clock import Clock
from switchyard.ports.database_time import TimeReading


class SqliteTime:
    """ports.clock.DatabaseTime on SQLite."""

    def __init__(self, journal: SqliteJournal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock

    async def read(self) -> TimeReading:
        """The machine's time and the journal's newest date."""
        return TimeReading(self._clock.now(), self._journal.newest_event_at, None)

    async def share(self, ahead: timedelta) -> None:
        """Does nothing: no other process can use the file."""
