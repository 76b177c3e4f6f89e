"""The idempotency key store on SQLite: lookups in reader threads, removals in the writer thread."""

import asyncio
from collections.abc import Collection
from datetime import datetime
from typing import Any

import apsw

from switchyard.adapters.sqlite import rows
from switchyard.adapters.sqlite.connections import Connections
from switchyard.adapters.sqlite.journal import SqliteJournal
from switchyard.adapters.tables import IDEMPOTENCY_KEYS
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.lines import stamp
from switchyard.domain.orders.keys import KeyEntry, counted_from
from switchyard.domain.orders.lifecycle import FINAL
from switchyard.ports.queries import KeyId, Reaped

_ENTRY = f"""
SELECT {IDEMPOTENCY_KEYS.column_list} FROM idempotency_keys
WHERE account_id = ? AND operation = ? AND idempotency_key = ?
"""
_BETWEEN = f"""
SELECT {IDEMPOTENCY_KEYS.column_list} FROM idempotency_keys
WHERE account_id = ? AND operation = ? AND idempotency_key BETWEEN ? AND ? AND created_at > ? LIMIT ?
"""
# Pages in primary key order: an index on `expires_at` would add a write to every accepted order.
_PAGE = """
SELECT account_id, operation, idempotency_key, order_id, created_at, expires_at FROM idempotency_keys
WHERE (account_id, operation, idempotency_key) > (?, ?, ?)
ORDER BY account_id, operation, idempotency_key LIMIT ?
"""
# A key whose order is missing is removed as if the order were final.
_REMOVE = """
DELETE FROM idempotency_keys WHERE (account_id, operation, idempotency_key) IN (
    SELECT expired.value->>0, expired.value->>1, expired.value->>2 FROM jsonb_each(?) AS expired
    WHERE coalesce((SELECT status FROM orders WHERE order_id = expired.value->>3), 'FILLED')
        IN (SELECT value FROM json_each(?))
)
"""


class SqliteKeyStore:
    """ports.keys.KeyStore on SQLite."""

    def __init__(self, connections: Connections, journal: SqliteJournal) -> None:
        self._connections = connections
        self._journal = journal
        self._asked: list[KeyId] = []
        self._answers: asyncio.Task[list[Any]] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def entry(self, account: AccountId, operation: str, key: str) -> KeyEntry | None:
        """The entry of a key, expired or not; None if there is none."""
        # Lookups that arrive while others are under way are made together: a thread per lookup costs ten times as much.
        if self._answers is None:
            self._answers = asyncio.create_task(self._look_up())
        answers, place = self._answers, len(self._asked)
        self._asked.append((account, operation, key))
        row = (await asyncio.shield(answers))[place]
        return None if row is None else rows.key_entry(row)

    async def _look_up(self) -> list[Any]:
        async with self._one_at_a_time:
            asked, self._asked, self._answers = self._asked, [], None
            return await self._connections.read(
                lambda connection: [connection.execute(_ENTRY, key).fetchone() for key in asked]
            )

    async def entries(
        self, account: AccountId, operation: str, first: str, last: str, since: datetime, limit: int
    ) -> list[KeyEntry]:
        """Entries created after `since` whose keys lie between `first` and `last`, inclusive."""
        values = (account, operation, first, last, stamp(since), limit)
        page = await self._connections.read(lambda connection: connection.execute(_BETWEEN, values).fetchall())
        return [rows.key_entry(row) for row in page]

    async def reap(
        self, now: datetime, jumped_at: datetime | None, after: KeyId | None, limit: int, kept: Collection[str] = ()
    ) -> Reaped:
        """Check the next entries and remove those that have expired and whose order is final."""

        def remove_expired(connection: apsw.Connection) -> Reaped:
            page: list[Any] = connection.execute(_PAGE, (*(after or ("", "", "")), limit)).fetchall()
            expired = [row[:4] for row in page if row[1] not in kept and _has_expired(row[4], row[5], now, jumped_at)]
            count = 0
            if expired:
                connection.execute(_REMOVE, (rows.json_array(expired), rows.json_array(sorted(FINAL))))
                count = connection.changes()
            return Reaped(count, tuple(page[-1][:3]) if len(page) == limit else None)

        return await self._journal.maintain(remove_expired)


def _has_expired(created: str, expires: str, now: datetime, jumped_at: datetime | None) -> bool:
    """`KeyEntry.expiry`, on the text of the row; most keys have not expired, and their dates are not parsed."""
    if expires >= stamp(now):
        return False
    created_at, expires_at = datetime.fromisoformat(created), datetime.fromisoformat(expires)
    return counted_from(created_at, jumped_at) + (expires_at - created_at) < now
