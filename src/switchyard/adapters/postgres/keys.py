"""The idempotency key store on PostgreSQL: lookups and removals through the pool of `Reader`."""

from collections.abc import Collection
from datetime import datetime

from switchyard.adapters.postgres.reader import Reader
from switchyard.adapters.tables import IDEMPOTENCY_KEYS
from switchyard.domain.errors import OutcomeUnknown
from switchyard.domain.ids import AccountId
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.lifecycle import FINAL
from switchyard.ports.queries import KeyId, Reaped

_ENTRY = f"""
SELECT {IDEMPOTENCY_KEYS.column_list} FROM idempotency_keys
WHERE (account_id, operation, idempotency_key) = ($1, $2, $3)
"""
_BETWEEN = f"""
SELECT {IDEMPOTENCY_KEYS.column_list} FROM idempotency_keys
WHERE account_id = $1 AND operation = $2 AND idempotency_key BETWEEN $3 AND $4 AND created_at > $5 LIMIT $6
"""
# Pages in primary key order: an index on `expires_at` would add a write to every accepted order. A key whose order is
# missing is removed as if the order were final.
_REAP = """
WITH page AS (
    SELECT account_id, operation, idempotency_key, created_at, expires_at, order_id, version FROM idempotency_keys
    WHERE (account_id, operation, idempotency_key) > ($1, $2, $3)
    ORDER BY account_id, operation, idempotency_key LIMIT $4
), removed AS (
    DELETE FROM idempotency_keys AS stored USING page
    WHERE (stored.account_id, stored.operation, stored.idempotency_key)
        = (page.account_id, page.operation, page.idempotency_key)
    AND stored.version = page.version AND page.operation <> ALL ($8::text[])
    AND greatest(page.created_at, $7) + (page.expires_at - page.created_at) < $5 -- `KeyEntry.expiry`
    AND coalesce((SELECT orders.status FROM orders WHERE orders.order_id = page.order_id), 'FILLED') = ANY ($6::text[])
    RETURNING 1
)
SELECT (SELECT count(*) FROM removed) AS count, (SELECT count(*) FROM page) AS seen, last.*
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
        """The entry of a key, expired or not; None if there is none."""
        # 'Unavailable' would mean that the request has no order.
        async with self._reader.barrier.confirmed(OutcomeUnknown) as read:
            records = await self._reader.unconfirmed_rows(_ENTRY, account, operation, key)
            if not records:
                read.needs_standby = False  # no proof of anything: the append decides
                return None
            entry = KeyEntry(**records[0])
            # The keys of requests without an order are written without an event.
            read.must_write = not entry.order_id
        return entry

    async def entries(
        self, account: AccountId, operation: str, first: str, last: str, since: datetime, limit: int
    ) -> list[KeyEntry]:
        """Entries created after `since` whose keys lie between `first` and `last`, inclusive."""
        records = await self._reader.unconfirmed_rows(_BETWEEN, account, operation, first, last, since, limit)
        return [KeyEntry(**record) for record in records]

    async def reap(
        self, now: datetime, jumped_at: datetime | None, after: KeyId | None, limit: int, kept: Collection[str] = ()
    ) -> Reaped:
        """Check the next entries and remove those that have expired and whose order is final."""
        arguments = (*(after or ("", "", "")), limit, now, sorted(FINAL), jumped_at, list(kept))
        [row] = await self._reader.unconfirmed_rows(_REAP, *arguments)
        is_last = row["seen"] < limit
        return Reaped(row["count"], None if is_last else (row["account_id"], row["operation"], row["idempotency_key"]))
