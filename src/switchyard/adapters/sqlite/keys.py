"""The idempotency keys on SQLite."""

from datetime import datetime
from typing import Any

import apsw

from switchyard.adapters.sqlite import rows
from switchyard.adapters.sqlite.connections import Connections
from switchyard.adapters.sqlite.journal import SqliteJournal
from switchyard.domain.chain import stamp
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import AccountId
from switchyard.domain.lifecycle import FINAL
from switchyard.ports.keys import KeyId, Reaped

_ENTRY = f"""
SELECT {rows.KEY_COLUMNS} FROM idempotency_keys
WHERE account_id = ? AND operation = ? AND idempotency_key = ?
"""
_BETWEEN = f"""
SELECT {rows.KEY_COLUMNS} FROM idempotency_keys
WHERE account_id = ? AND operation = ? AND idempotency_key BETWEEN ? AND ? AND created_at > ? LIMIT ?
"""
# A walk in the order of the primary key: an index by expiry would cost every order that comes in.
_PAGE = """
SELECT account_id, operation, idempotency_key, expires_at < ?, order_id FROM idempotency_keys
WHERE (account_id, operation, idempotency_key) > (?, ?, ?)
ORDER BY account_id, operation, idempotency_key LIMIT ?
"""
_REMOVE = """
DELETE FROM idempotency_keys WHERE (account_id, operation, idempotency_key) IN (
    SELECT wanted.value->>0, wanted.value->>1, wanted.value->>2 FROM jsonb_each(?) AS wanted
    WHERE coalesce((SELECT status FROM orders WHERE order_id = wanted.value->>3), 'FILLED')
        IN (SELECT value FROM json_each(?))
)
"""


class SqliteKeyStore:
    """ports.keys.KeyStore on SQLite."""

    def __init__(self, connections: Connections, journal: SqliteJournal) -> None:
        self._connections = connections
        self._journal = journal

    async def entry(self, account: AccountId, operation: str, key: str) -> KeyEntry | None:
        """What the key stands for, expired or not."""
        row = await self._connections.read(
            lambda connection: connection.execute(_ENTRY, (account, operation, key)).fetchone()
        )
        return None if row is None else rows.key_entry(row)

    async def entries(
        self, account: AccountId, operation: str, first: str, last: str, since: datetime, limit: int
    ) -> list[KeyEntry]:
        """Entries made after that moment whose keys lie between the two, both included."""
        values = (account, operation, first, last, stamp(since), limit)
        found = await self._connections.read(lambda connection: connection.execute(_BETWEEN, values).fetchall())
        return [rows.key_entry(row) for row in found]

    async def reap(self, now: datetime, after: KeyId | None, limit: int) -> Reaped:
        """Look at the next entries and remove those that have expired and whose order is final."""

        def walk(connection: apsw.Connection) -> Reaped:
            page: list[Any] = connection.execute(_PAGE, (stamp(now), *(after or ("", "", "")), limit)).fetchall()
            expired = [(*key, order_id) for *key, is_expired, order_id in page if is_expired]
            count = 0
            if expired:
                connection.execute(_REMOVE, (rows.text_array(expired), rows.text_array(sorted(FINAL))))
                count = connection.changes()
            return Reaped(count, tuple(page[-1][:3]) if len(page) == limit else None)

        return await self._journal.tidy(walk)

    async def now(self) -> datetime:
        """The engine's clock, which is the machine's: nobody else writes here."""
        sql = "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"
        found: Any = await self._connections.read(lambda connection: connection.execute(sql).fetchone())
        return datetime.fromisoformat(found[0])
