"""The server's wall clock and the offset that the processes share, in the one row of `steady_clock`."""

from datetime import timedelta

from switchyard.adapters.postgres.connection import Reader
from switchyard.ports.database_time import SharedOffset, TimeReading

_READ = """
SELECT wall_clock() AS wall, (SELECT max(at) FROM journal_heads) AS newest_event_at, shared.ahead, shared.written_at
FROM (SELECT true) AS reading LEFT JOIN steady_clock AS shared ON true
"""
_SHARE = """
INSERT INTO steady_clock (ahead, written_at) VALUES ($1, wall_clock())
ON CONFLICT (only_row) DO UPDATE SET ahead = excluded.ahead, written_at = excluded.written_at
"""


class PostgresTime:
    """ports.clock.DatabaseTime on PostgreSQL."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def read(self) -> TimeReading:
        """The server's times, in one statement."""
        [row] = await self._reader.rows(_READ)
        shared = None if row["written_at"] is None else SharedOffset(row["ahead"], row["written_at"])
        return TimeReading(row["wall"], row["newest_event_at"], shared)

    async def share(self, ahead: timedelta) -> None:
        """Store the offset for processes that start later."""
        await self._reader.rows(_SHARE, ahead)
