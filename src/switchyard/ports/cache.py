"""What may be shared over Redis: the idempotency cache and the counters of rate limits. Only SQL decides about keys."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, Protocol

import msgspec

from switchyard.domain.ids import AccountId, OrderId

CacheStatus = Literal["pending", "submitted", "completed", "failed"]

# Our responses have a few hundred bytes. Transferring a larger one than this costs more than reading the key store.
RESPONSE_BYTES_MAX = 16 * 1024

_STAGES: Mapping[CacheStatus, int] = {"pending": 0, "submitted": 1, "completed": 2, "failed": 2}


class CacheEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a request, as the key store had it when the entry was written."""

    account_id: AccountId
    operation: str
    idempotency_key: str
    generation: int
    """The generation of the key store's entry."""
    request_digest: str
    """A request with the same key and another digest is not a hit: the key store decides."""
    order_id: OrderId
    request_id: str | None = None
    status: CacheStatus
    http_status: int | None = None
    response: str | None = None
    """The final response body, for routes that repeat it."""
    created_at: datetime
    """The key store's `created_at`, so that it is the same on every gateway."""
    expires_at: datetime
    """Not later than the key store's `expires_at`: an entry must not outlive its key."""
    history: str = ""
    """The `Journal.history` under which the key store had it."""
    error: str | None = None
    """Why the request failed; None unless the status is `failed`. Such an entry answers no request."""
    last_accessed: datetime | None = None
    """With the next field: the lookups of all gateways that found the entry, this one included; None before them."""
    access_count: int = 0

    @property
    def precedence(self) -> tuple[int, datetime, int]:
        """An entry replaces one of the same or a lower precedence only, so a late write cannot undo a newer one."""
        return self.generation, self.created_at, _STAGES[self.status]

    @property
    def is_cacheable(self) -> bool:
        """Whether the response is small enough to be cached."""
        # A character takes at most four bytes, so most responses need not be encoded to be measured.
        return (
            self.response is None
            or len(self.response) * 4 <= RESPONSE_BYTES_MAX
            or len(self.response.encode("utf-8", "surrogatepass")) <= RESPONSE_BYTES_MAX
        )


class CacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """Size and hit rate of a cache; hits, lookups and errors count this process only."""

    is_reachable: bool
    """False if the entries could not be counted; the entry counts are 0 then."""
    entries: int
    active: int
    expired: int
    by_status: Mapping[CacheStatus, int]
    oldest_age_seconds: float | None
    hits: int
    lookups: int
    errors: int
    memory_bytes: int | None = None
    """Memory that the cache's server uses in all; None for a cache in memory, or if the server does not say."""

    @property
    def hit_rate(self) -> float:
        """Hits divided by lookups."""
        return self.hits / self.lookups if self.lookups else 0.0


class Cache(Protocol):
    """Entries by (account, operation, key); every failure of the cache is a miss, and no method raises."""

    async def get(self, account: AccountId, operation: str, key: str) -> CacheEntry | None:
        """Return the entry, or None if there is no authentic one."""

    def put(self, entry: CacheEntry) -> None:
        """Store the entry in the background; a lost write is a later miss."""

    async def forget(self, account: AccountId, operation: str, key: str) -> None:
        """Remove the entry; if the cache cannot be reached, the entry stays until it expires."""

    async def stats(self) -> CacheStats:
        """Return size and hit rate."""

    async def run(self) -> None:
        """Do the background work until cancelled."""

    async def close(self) -> None:
        """Close the connections."""


CacheError = Literal[
    "unavailable",  # no reply in time
    "refused",  # the server replied with an error, or did not take an entry
    "wrong_entry",  # the stored value was not written by us for this key
    "dropped",  # the write queue was full, or the server was unreachable
]


class CacheWatch(Protocol):
    """Counts the events of one cache."""

    def looked_up(self, *, hit: bool) -> None:
        """Count a finished lookup."""

    def failed(self, kind: CacheError) -> None:
        """Count a failure that the cache hid from its caller."""

    def expired(self, entries: int) -> None:
        """Count entries that were removed because their time was over."""

    def holds(self, entries: int) -> None:
        """Set the number of entries."""


class TokenBuckets(Protocol):
    """One bucket for each account, full at the beginning and refilled at a constant rate; never raises."""

    async def take(self, account: str) -> timedelta | None:
        """Take a token and return None, or return how long to wait for the next one."""

    async def put_back(self, account: str) -> None:
        """Return a token that was not needed."""

    async def wait(self, account: str) -> timedelta | None:
        """Return how long `take` would have to wait; takes nothing."""


class Counted(NamedTuple):
    """A request that was counted, or rejected, and what is left."""

    wait: timedelta | None
    """None if the request is allowed, else how long to wait."""
    remaining: int
    """Requests that are allowed now."""
    reset: timedelta
    """When the oldest counted request leaves the window, and one more is allowed."""


class SharedRate(Protocol):
    """A limit per client over a sliding window; a rejected request does not count."""

    async def count(self, client: str) -> Counted:
        """Count a request, or reject it; never raises."""

    async def take(self, client: str) -> timedelta | None:
        """Count a request and return None, or return how long to wait; never raises."""
