"""The idempotency cache: repeats answered cheaply, while the key store alone decides."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, Protocol

import msgspec

from switchyard.domain.ids import AccountId, OrderId

CacheStatus = Literal["pending", "submitted", "completed", "failed"]
CacheError = Literal[
    "unavailable",  # asked, and no answer in time
    "refused",  # the server answered that it would not
    "wrong_entry",  # what was there was not written by us for this key
    "dropped",  # written too fast, or while the server was away
]

# An answer of ours takes some hundred bytes; one above this would cost every repeat more than asking the key store.
RESPONSE_BYTES_MAX = 16 * 1024

_STAGES: Mapping[CacheStatus, int] = {"pending": 0, "submitted": 1, "completed": 2, "failed": 2}


class CacheEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the request with a key, as the key store had it when this was written."""

    account_id: AccountId
    operation: str
    idempotency_key: str
    generation: int
    """The key store's: how often the key began anew."""
    request_digest: str
    """Another digest under the same key is another request: the key store's matter, not a hit."""
    order_id: OrderId
    request_id: str | None = None
    status: CacheStatus
    http_status: int | None = None
    response: str | None = None
    """The final body, where the route answers with one."""
    created_at: datetime
    """The key store's, so that it is the same on every gateway."""
    expires_at: datetime
    """Not later than the key store's: the cache must not remember what the key store has forgotten."""

    @property
    def precedence(self) -> tuple[int, datetime, int]:
        """An entry gives way only to one of the same or a higher precedence, whoever is late."""
        return self.generation, self.created_at, _STAGES[self.status]

    @property
    def is_cacheable(self) -> bool:
        """Whether the response is small enough to be kept."""
        # A character takes at most four bytes, so most responses need no encoding to be judged.
        return (
            self.response is None
            or len(self.response) * 4 <= RESPONSE_BYTES_MAX
            or len(self.response.encode("utf-8", "surrogatepass")) <= RESPONSE_BYTES_MAX
        )


class CacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """How the cache is doing; hits, lookups and errors are this process's own."""

    is_reachable: bool
    """False where the entries could not be counted; they are 0 then."""
    entries: int
    active: int
    expired: int
    by_status: Mapping[CacheStatus, int]
    oldest_age_seconds: float | None
    hits: int
    lookups: int
    errors: int

    @property
    def hit_rate(self) -> float:
        """Hits per lookup."""
        return self.hits / self.lookups if self.lookups else 0.0


class Cache(Protocol):
    """Entries by (account, operation, key); down, slow, emptied or lying, it only ever misses, and never raises."""

    async def get(self, account: AccountId, operation: str, key: str) -> CacheEntry | None:
        """The entry, or none where there is none that can be trusted."""
        ...

    def put(self, entry: CacheEntry) -> None:
        """Keep the entry, behind the answer; one that gets lost is a miss later on."""
        ...

    async def forget(self, account: AccountId, operation: str, key: str) -> None:
        """Drop an entry where it can be reached; where not, it stays until it expires."""
        ...

    async def stats(self) -> CacheStats:
        """How full it is and how well it does."""
        ...

    async def run(self) -> None:
        """Do what goes on behind the answers, until cancelled."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class CacheWatch(Protocol):
    """Whoever counts what a cache does."""

    def looked_up(self, *, hit: bool) -> None:
        """A lookup ended."""
        ...

    def failed(self, kind: CacheError) -> None:
        """Something went wrong, which no caller noticed."""
        ...

    def holds(self, entries: int) -> None:
        """So many entries are there."""
        ...
