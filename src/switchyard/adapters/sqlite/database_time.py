"""The machine's wall clock, since an embedded database has no other, and the one row of `steady_clock`."""

from datetime import datetime, timedelta

import apsw
import msgspec

from switchyard.adapters.sqlite.connections import Connections
from switchyard.adapters.sqlite.journal import SqliteJournal
from switchyard.adapters.system_clock import boot_id, boot_seconds
from switchyard.domain.journal.lines import stamp
from switchyard.ports.clock import Clock
from switchyard.ports.journal import StoredTime, TimeReading

_READ = "SELECT ahead_seconds, written_at, boot_id, boot_seconds, jumped_at, stepped_seconds FROM steady_clock"
_STORE = """
INSERT OR REPLACE INTO steady_clock
    (only_row, ahead_seconds, written_at, boot_id, boot_seconds, jumped_at, stepped_seconds)
VALUES (1, ?, ?, ?, ?, ?, ?)
"""


class SqliteTime:
    """ports.database_time.DatabaseTime on SQLite.

    The process that writes is the only one that changes the row, and reads it once. One that only reads (`follows`)
    takes its time from the row, carried on to now by the machine's clock.
    """

    def __init__(self, connections: Connections, journal: SqliteJournal, clock: Clock, *, follows: bool) -> None:
        self._connections = connections
        self._journal = journal
        self._clock = clock
        self.is_shared = follows
        self._stored = _stored_time(connections.writer)

    async def read(self) -> TimeReading:
        """The machine's time, the journal's newest date and the row."""
        if self.is_shared:
            return await self._read_followed()
        return TimeReading(self._clock.now(), self._journal.newest_event_at, self._stored)

    async def _read_followed(self) -> TimeReading:
        """The same, with the row as the other process would store it now."""
        stored = await self._connections.read(_stored_time)
        wall, ticks = self._clock.now(), boot_seconds()
        if stored is not None and stored.boot_id == boot_id():
            now = stored.written_at + stored.ahead + timedelta(seconds=ticks - stored.boot_seconds)
            stored = msgspec.structs.replace(stored, ahead=now - wall, written_at=wall, boot_seconds=ticks)
        return TimeReading(wall, None, stored)

    async def store(self, time: StoredTime, *, read: StoredTime | None) -> bool:
        """Replace the row."""
        if self.is_shared:
            return True
        if read != self._stored:
            return False
        jumped_at = None if time.jumped_at is None else stamp(time.jumped_at)
        values = (
            time.ahead.total_seconds(),
            stamp(time.written_at),
            time.boot_id,
            time.boot_seconds,
            jumped_at,
            time.stepped_ahead.total_seconds(),
        )
        await self._journal.maintain(lambda connection: connection.execute(_STORE, values).fetchall())
        self._stored = time
        return True


def _stored_time(connection: apsw.Connection) -> StoredTime | None:
    row = connection.execute(_READ).fetchone()
    if row is None:
        return None
    ahead_seconds, written_at, boot_id, boot_seconds, jumped_at, stepped_seconds = row
    return StoredTime(
        ahead=timedelta(seconds=ahead_seconds),
        written_at=datetime.fromisoformat(written_at),
        boot_id=boot_id,
        boot_seconds=boot_seconds,
        jumped_at=None if jumped_at is None else datetime.fromisoformat(jumped_at),
        stepped_ahead=timedelta(seconds=stepped_seconds),
    )
