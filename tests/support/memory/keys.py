"""The idempotency key store over the in-memory journal's rows."""

from collections.abc import Collection
from datetime import datetime

from switchyard.domain.ids import AccountId
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.lifecycle import is_final
from switchyard.ports.queries import KeyId, Reaped
from tests.support.memory.journal import MemoryJournal


class MemoryKeyStore:
    """ports.queries.KeyStore in memory."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal

    async def entry(self, account: AccountId, operation: str, key: str) -> KeyEntry | None:
        """Return the entry of a key, even if it has expired."""
        return self._journal.keys.get((account, operation, key))

    async def entries(
        self, account: AccountId, operation: str, first: str, last: str, since: datetime, limit: int
    ) -> list[KeyEntry]:
        """Return entries created after `since` whose keys lie between `first` and `last`, both included."""
        matching = [
            entry
            for entry in self._journal.keys.values()
            if (entry.account_id, entry.operation) == (account, operation)
            and first <= entry.idempotency_key <= last
            and entry.created_at > since
        ]
        return matching[:limit]

    async def reap(
        self, now: datetime, jumped_at: datetime | None, after: KeyId | None, limit: int, kept: Collection[str] = ()
    ) -> Reaped:
        """Check the next `limit` entries and remove those that have expired and whose order is final."""
        page = sorted(key for key in self._journal.keys if after is None or key > after)[:limit]
        removable = [
            key for key in page if key[1] not in kept and self._is_removable(self._journal.keys[key], now, jumped_at)
        ]
        for key in removable:
            del self._journal.keys[key]
        return Reaped(len(removable), page[-1] if len(page) == limit else None)

    def _is_removable(self, entry: KeyEntry, now: datetime, jumped_at: datetime | None) -> bool:
        order = self._journal.orders.get(entry.order_id)
        return entry.expiry(jumped_at) < now and (order is None or is_final(order.status))
