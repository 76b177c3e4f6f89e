"""The idempotency keys on PostgreSQL."""

from datetime import datetime

from switchyard.adapters.postgres.connection import Reader
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import AccountId
from switchyard.domain.lifecycle import FINAL
from switchyard.ports.keys import KeyId, Reaped

_COLUMNS = ", ".join(KeyEntry.__struct_fields__)
_ENTRY = f"SELECT {_COLUMNS} FROM idempotency_keys WHERE (account_id, operation, idempotency_key) = ($1, $2, $3)"
_BETWEEN = f"""
SELECT {_COLUMNS} FROM idempotency_keys
WHERE account_id = $1 AND operation = $2 AND idempotency_key BETWEEN $3 AND $4 AND created_at > $5 LIMIT $6
"""
# A walk in the order of the primary key: an index by expiry would cost every order that comes in.
_REAP = """
WITH page AS (
    SELECT account_id, operation, idempotency_key, expires_at, order_id, version FROM idempotency_keys
    WHERE (account_id, operation, idempotency_key) > ($1, $2, $3)
    ORDER BY account_id, operation, idempotency_key LIMIT $4
), gone AS (
    DELETE FROM idempotency_keys AS present USING page
    WHERE (present.account_id, present.operation, present.idempotency_key)
        = (page.account_id, page.operation, page.idempotency_key)
    AND present.version = page.version AND page.expires_at < $5
    AND coalesce((SELECT orders.status FROM orders WHERE orders.order_id = page.order_id), 'FILLED') = ANY ($6::text[])
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone) AS count, (SELECT count(*) FROM page) AS seen, last.*
FROM (SELECT 1) AS one LEFT JOIN LATERAL (
    SELECT account_id, operation, idempotency_key FROM page
    ORDER BY account_id DESC, operation DESC, idempotency_key DESC LIMIT 1
) AS last ON true
"""


class PostgresKeyStore:
    """ports.keys.KeyStore on PostgreSQL."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def entry(self, account: AccountId, operation: str, key: str) -> KeyEntry | None:
        """What the key stands for, expired or not."""
        found = await self._reader.rows(_ENTRY, account, operation, key)
        return KeyEntry(**found[0]) if found else None

    async def entries(
        self, account: AccountId, operation: str, first: str, last: str, since: datetime, limit: int
    ) -> list[KeyEntry]:
        """Entries made after that moment whose keys lie between the two, both included."""
        found = await self._reader.rows(_BETWEEN, account, operation, first, last, since, limit)
        return [KeyEntry(**row) for row in found]

    async def reap(self, now: datetime, after: KeyId | None, limit: int) -> Reaped:
        """Look at the next entries and remove those that have expired and whose order is final."""
        [row] = await self._reader.rows(_REAP, *(after or ("", "", "")), limit, now, sorted(FINAL))
        is_last = row["seen"] < limit
        return Reaped(row["count"], None if is_last else (row["account_id"], row["operation"], row["idempotency_key"]))

    async def now(self) -> datetime:
        """The server's clock."""
        [row] = await self._reader.rows("SELECT clock_timestamp() AS now")
        now: datetime = row["now"]
        return now
