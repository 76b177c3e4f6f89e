"""A request to place an order: its identity, the order that it got, and the cache that answers its repeats.

Reads and writes the `Cache` port. Entries of the cache are copies of rows of the key store, which alone decides.
"""

from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.risk.checks import Violation
from switchyard.ports.cache import Cache, CacheEntry, CacheStatus


class IdempotentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a request: the same account, operation and key mean the same order."""

    account_id: AccountId
    operation: str
    key: str
    """Empty for a request without a key: each of those is an order of its own."""
    digest: str
    """Of the request's content: the same key with another digest is a conflict."""
    created_at: datetime
    ttl: timedelta
    trace_id: str | None = None
    requested_at: datetime | None = None


class Placement(msgspec.Struct, frozen=True):
    """The order that belongs to a request."""

    order_id: OrderId
    entry: KeyEntry | None = None
    """The key's row; none for a request without a key and for an answer from the cache."""
    replayed: bool = False
    """Whether an earlier request placed the order; that request's digest may differ."""
    previous: KeyEntry | None = None
    """The row that this placement replaced, if the key is reused and its row still existed."""
    cached: CacheEntry | None = None
    """The cache entry that answered the request; none where the key store was asked."""
    violation: Violation | None = None
    """Why the new order was rejected; of an earlier order `OrderIntake.rejection` tells."""

    @property
    def reuses_expired_key(self) -> bool:
        """Whether this is a new order under a key whose earlier order was older than the key's time to live."""
        if self.replayed or self.entry is None or self.entry.generation == 0:
            return False
        return self.previous is None or self.previous.expires_at <= self.entry.created_at


class KeyRules(Protocol):
    """How one operation treats its keys."""

    def may_answer_from_cache(self, request: IdempotentRequest, cached: CacheEntry) -> bool:
        """Whether this cache entry answers the request without a look in the key store."""
        ...

    async def may_reuse_key(self, request: IdempotentRequest, entry: KeyEntry) -> bool:
        """Whether the key may start a new generation, with a new order, although `entry` holds it."""
        ...


class KeyCache:
    """Lookups by request and writes by key entry; without a cache every lookup is a miss."""

    def __init__(self, cache: Cache | None, ttl: timedelta) -> None:
        self._cache = cache
        self._ttl = ttl

    async def find(self, request: IdempotentRequest) -> CacheEntry | None:
        """Return the entry of the same request; the same key with another digest is a miss, and so is a failure.

        A request that failed may be tried again, and a late fill can contradict its failure: the key store decides.
        """
        if self._cache is None:
            return None
        entry = await self._cache.get(request.account_id, request.operation, request.key)
        if entry is None or entry.status == "failed" or entry.request_digest != request.digest:
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
