"""The PDCA store: the registry of strategies, and the durable queue of rechecks with their results and artifacts.

One store has all three ports. Several processes may use it at once.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, Protocol

import msgspec

from switchyard.domain.bus import Place
from switchyard.domain.errors import SwitchyardError, Unavailable
from switchyard.domain.pdca.requests import (
    Artifact,
    Fence,
    Filter,
    ItemError,
    ItemResult,
    Progress,
    RecheckItem,
    RecheckRequest,
    RunnerInfo,
    RunnerName,
)
from switchyard.domain.pdca.strategies import Strategy, StrategyBody

SortField = Literal["id", "owner", "health", "last_checked_at", "created_at", "updated_at"]
# Bounds the memory of one read.
PAGE_MAX = 100


class PdcaUnavailable(Unavailable):
    """The store could not be read or written, and nothing was written; a repeat may succeed."""


class TooManyStrategies(SwitchyardError):
    """The registry is at its bound."""


class UnknownStrategies(SwitchyardError):
    """A request names strategies that are not in the registry; nothing was written."""

    def __init__(self, strategy_ids: Sequence[str]) -> None:
        super().__init__(f"not registered: {', '.join(strategy_ids)}")
        self.strategy_ids = tuple(strategy_ids)


class LostFence(SwitchyardError):
    """The item has ended, or another worker has claimed it since; nothing was written."""


class StrategyQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which strategies to return, and in which order; equal ones are ordered by id."""

    filter: Filter = Filter()
    text: str = ""
    """A part of the id or of the owner, in any case; `%` and `_` stand for themselves."""
    sort: SortField = "id"
    """A missing value is smaller than any other. Healths are ordered as `HEALTHS` lists them."""
    descending: bool = False
    offset: int = 0
    limit: int = PAGE_MAX


class StrategyPage(msgspec.Struct, frozen=True):
    """A page of strategies, and how many there are on all pages, both at the same moment."""

    strategies: tuple[Strategy, ...]
    total: int


class Registered(msgspec.Struct, frozen=True):
    """What a page of events did to the registry."""

    new: tuple[str, ...]
    left_out: int
    """Strategies that were not added, because the registry is at its bound."""


class Created(msgspec.Struct, frozen=True):
    """The request of a key."""

    request: RecheckRequest
    replayed: bool
    """Whether an earlier call has created it."""


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request, its run and its progress, all at the same moment."""

    request: RecheckRequest
    run: RunnerInfo
    progress: Progress
    started_at: datetime | None
    finished_at: datetime | None
    """When its last item ended."""


class ItemPage(msgspec.Struct, frozen=True):
    """A page of a request's items in the order of their batches, with the request at the same moment."""

    stored: StoredRequest
    items: tuple[RecheckItem, ...]


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """An item that this worker is to recheck."""

    fence: Fence
    request: RecheckRequest
    strategy: Strategy
    """As it is now: its thresholds and its capital."""
    attempts: int
    lease_until: datetime


class NewArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """A file to store with a result."""

    name: str
    """Matches `[a-z0-9._-]{1,64}`."""
    media_type: str
    content: bytes


class StoredArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """A file with its content."""

    artifact: Artifact
    content: bytes


class StrategyRegistry(Protocol):
    """The strategies."""

    async def strategy(self, strategy_id: str) -> Strategy | None:
        """Return the strategy; none if there is no such."""
        ...

    async def strategies(self, query: StrategyQuery) -> StrategyPage:
        """Return a page of strategies, at most PAGE_MAX, and the total."""
        ...

    async def put_strategy(self, strategy_id: str, body: StrategyBody, now: datetime) -> tuple[Strategy, bool]:
        """Set what people decide about a strategy; returns it, and whether it is new. Raises TooManyStrategies.

        Its health stays: the next recheck judges by the new thresholds.
        """
        ...

    async def place(self) -> Place:
        """Return the last event of the journal that was looked through for strategies."""
        ...

    async def register(self, after: Place, place: Place, strategy_ids: Sequence[str], now: datetime) -> Registered:
        """Add the strategies that are missing and move the place, in one transaction.

        Raises HistoryMismatch, with nothing written, if the stored place is not `after`.
        """
        ...


class RecheckRequests(Protocol):
    """The requests."""

    async def create(
        self, request: RecheckRequest, key: str, digest: str, strategy_ids: Sequence[str] | None
    ) -> Created:
        """Store the request with one item per strategy, in one transaction; durable on return.

        Without `strategy_ids`, the items are the strategies that the request's filter selects now. An earlier request
        with the same client, operation and key is returned instead if its digest is equal; otherwise raises
        IdempotencyConflict. Raises UnknownStrategies.
        """
        ...

    async def request(self, request_id: str) -> StoredRequest | None:
        """Return the request; none if there is no such."""
        ...

    async def items(self, request_id: str, offset: int, limit: int) -> ItemPage | None:
        """Return a page of its items, at most PAGE_MAX, with the names of their artifacts."""
        ...

    async def unfinished(
        self, runner: RunnerName, *, submitted: bool, after: str = "", limit: int = PAGE_MAX
    ) -> list[StoredRequest]:
        """Return unfinished requests of the runner by request id, after this one: those it has taken, or has not."""
        ...

    async def note_run(self, request_id: str, run: RunnerInfo) -> None:
        """Replace what is known of the run of a request."""
        ...

    async def reap(self, ended_before: datetime, limit: int) -> int:
        """Remove the oldest requests that ended before this time, with their keys and artifacts; return how many."""
        ...


class RecheckQueue(Protocol):
    """The items as work: claimed by workers, ended once."""

    async def claim_items(
        self,
        worker: str,
        limit: int,
        *,
        now: datetime,
        lease: timedelta,
        runner: RunnerName = "embedded",
        request_id: str | None = None,
    ) -> list[Claimed]:
        """Claim items whose turn it is: queued ones, and running ones whose lease has ended.

        With `request_id`, of that request alone, whatever its runner is. The next batch of a request begins when all
        items of the one before have ended. An item that was claimed ATTEMPTS_MAX times without a result ends as failed
        instead.
        """
        ...

    async def renew(self, fence: Fence, lease_until: datetime) -> None:
        """Extend the lease. Raises LostFence."""
        ...

    async def release(self, fence: Fence) -> None:
        """Give the item back unfinished, at an orderly stop: it is queued again, and the attempt does not count.

        Raises LostFence.
        """
        ...

    async def finish_item(
        self, fence: Fence, outcome: ItemResult | ItemError, now: datetime, artifacts: Sequence[NewArtifact] = ()
    ) -> None:
        """End the item with its result or its error, and store its artifacts, in one transaction; durable on return.

        A result of a request that is no dry run also becomes the health and the metrics of the strategy, unless the
        strategy has those of a request that was accepted later. Raises LostFence; ValueError over a bound of
        domain/pdca/requests.py.
        """
        ...

    async def fail_items(self, request_id: str, error: ItemError, now: datetime) -> int:
        """End all unfinished items of a request, whose run has failed; their workers lose their fences."""
        ...

    async def artifact(self, request_id: str, strategy_id: str, name: str) -> StoredArtifact | None:
        """Return an artifact; none if there is no such."""
        ...


class PdcaStore(StrategyRegistry, RecheckRequests, RecheckQueue, Protocol):
    """All of it."""

    async def close(self) -> None:
        """Finish the write in progress and disconnect."""
        ...
