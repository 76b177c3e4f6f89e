"""Repeats answered from the cache: what it says is what the key store said, or nothing."""

from datetime import datetime, timedelta

from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import AccountId, OrderId
from switchyard.ports.cache import Cache, CacheEntry, CacheStatus


class KeyCache:
    """The cache as the desks use it; without one, nothing is ever remembered."""

    def __init__(self, cache: Cache | None, ttl: timedelta) -> None:
        self._cache = cache
        self._ttl = ttl

    async def find(self, account: AccountId, operation: str, key: str, digest: str) -> CacheEntry | None:
        """The entry of the very same request; another body under the same key is the key store's matter."""
        if self._cache is None:
            return None
        entry = await self._cache.get(account, operation, key)
        return entry if entry is not None and entry.request_digest == digest else None

    def keep(
        self,
        entry: KeyEntry,
        status: CacheStatus,
        *,
        now: datetime,
        http_status: int | None = None,
        response: str | None = None,
    ) -> None:
        """Remember what the key store has, behind the answer."""
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
                created_at=entry.created_at,
                expires_at=min(entry.expires_at, now + self._ttl),
            )
        )


def request_id(order: OrderId) -> str:
    """What the request that made an order is called: there is one for each."""
    return "req_" + order.removeprefix("ord_")
