"""The server's wall clock and the time that the processes share, in the one row of `steady_clock`."""

from switchyard.adapters.postgres.reader import Reader
from switchyard.ports.journal import StoredTime, TimeReading

_READ = """
SELECT wall_clock() AS wall, (SELECT max(at) FROM journal_heads) AS newest_event_at,
    stored.ahead, stored.written_at, stored.boot_id, stored.boot_seconds, stored.jumped_at,
    stored.stepped_ahead
FROM (SELECT true) AS reading LEFT JOIN steady_clock AS stored ON true
"""
# Dated by the reading that `ahead` comes from: the wall clock may have been stepped since.
_STORE = """
INSERT INTO steady_clock (ahead, written_at, boot_id, boot_seconds, jumped_at, stepped_ahead)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (only_row) DO UPDATE SET ahead = excluded.ahead, written_at = excluded.written_at,
    boot_id = excluded.boot_id, boot_seconds = excluded.boot_seconds, jumped_at = excluded.jumped_at,
    stepped_ahead = excluded.stepped_ahead
WHERE (steady_clock.ahead, steady_clock.written_at) = ($7, $8)
RETURNING 1
"""


class PostgresTime:
    """ports.database_time.DatabaseTime on PostgreSQL."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.is_shared = True

    async def read(self) -> TimeReading:
        """The server's times, in one statement."""
        [row] = await self._reader.unconfirmed_rows(_READ)
        stored = None
        if row["written_at"] is not None:
            stored = StoredTime(**{name: row[name] for name in StoredTime.__struct_fields__})
        return TimeReading(row["wall"], row["newest_event_at"], stored)

    async def store(self, time: StoredTime, *, read: StoredTime | None) -> bool:
        """Replace the row that was read."""
        values = (time.ahead, time.written_at, time.boot_id, time.boot_seconds, time.jumped_at, time.stepped_ahead)
        before = (None, None) if read is None else (read.ahead, read.written_at)
        return bool(await self._reader.unconfirmed_rows(_STORE, *values, *before))
