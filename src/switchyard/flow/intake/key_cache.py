"""The idempotency cache as the desks use it: it answers repeats without a look in the key store.

Reads and writes the `Cache` port. Entries are copies of rows of the key store, which alone decides.
"""

from datetime import datetime, timedelta

from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import OrderId
from switchyard.flow.intake.writer import Intent
from switchyard.ports.cache import Cache, CacheEntry, CacheStatus


class KeyCache:
    """Lookups by intent and writes by key entry; without a cache every lookup is a miss."""

    def __init__(self, cache: Cache | None, ttl: timedelta) -> None:
        self._cache = cache
        self._ttl = ttl

    async def find(self, intent: Intent) -> CacheEntry | None:
        """Return the entry of the same request; the same key with another digest is a miss, and so is a failure.

        A request that failed may be tried again, and a late fill can contradict its failure: the key store decides.
        """
        if self._cache is None:
            return None
        entry = await self._cache.get(intent.account_id, intent.operation, intent.key)
        if entry is None or entry.status == "failed" or entry.request_digest != intent.digest:
            return None
        return entry

    def keep(
        self,
        entry: KeyEntry,
        status: CacheStatus,
        *,
        now: datetime,
        http_status: int | None = None,
        response: str | None = None,
        error: str | None = None,
    ) -> None:
        """Copy the key store's entry into the cache, in the background."""
        if self._cache is None:
            return
        self._cache.put(
            CacheEntry(
                account_id=entry.account_id,
                operation=entry.operation,
                idempotency_key=entry.idempotency_key,
                generation=entry.generation,
                request_digest=entry.request_digest,
                order_id=entry.order_id,
                request_id=request_id(entry.order_id),
                status=status,
                http_status=http_status,
                response=response,
                error=error,
                created_at=entry.created_at,
                expires_at=min(entry.expires_at, now + self._ttl),
            )
        )


def request_id(order_id: OrderId) -> str:
    """Return the id of the request that placed an order; each order has one such request."""
    return "req_" + order_id.removeprefix("ord_")
