"""The PDCA store: the registry of strategies, and the durable queue of rechecks with their results and artifacts.

One store has all of these ports. Several processes may use it at once.
"""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Literal, Protocol

import msgspec

from switchyard.domain.books.entries import LedgerEntry
from switchyard.domain.errors import SwitchyardError, Unavailable
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.lines import Place
from switchyard.domain.strategies.metrics import StrategyOrder, Window
from switchyard.domain.strategies.registry import Strategy, StrategyBody, StrategyKey, Tenant, Tenants
from switchyard.domain.strategies.requests import (
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
    Tally,
)


class LostFence(SwitchyardError):
    """The item has ended, or another worker has claimed it since; nothing was written."""


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

    tenant: Tenant
    artifact: Artifact
    content: bytes


class RecheckQueue(Protocol):
    """The items as work: claimed by workers, ended once."""

    async def claim_items(
        self,
        worker: str,
        limit: int,
        *,
        now: datetime,
        lease: timedelta,
        request_id: str | None = None,
    ) -> list[Claimed]:
        """Claim items whose turn it is: queued ones, and running ones whose lease has ended.

        Of requests for the runner `embedded`; the callers, which are the sets of tenants that requests were created
        for, take turns. With `request_id`, of that request alone, whatever its runner is. The next batch of a request
        begins when all items of the one before have ended. An item that was claimed ATTEMPTS_MAX times without a result
        ends as failed instead, and so does one whose strategy was deleted, also if it was registered again since.
        """

    async def renew(self, fence: Fence, lease_until: datetime) -> None:
        """Extend the lease. Raises LostFence."""

    async def release(self, fence: Fence) -> None:
        """Give the item back unfinished, at an orderly stop: it is queued again, and the attempt does not count.

        Raises LostFence.
        """

    async def finish_item(
        self, fence: Fence, outcome: ItemResult | ItemError, now: datetime, artifacts: Sequence[NewArtifact] = ()
    ) -> None:
        """End the item with its result or its error, and store its artifacts, in one transaction; durable on return.

        A result of a request that is no dry run also becomes the health and the metrics of the strategy, unless the
        strategy has those of a request that was accepted later, or was deleted. Raises LostFence; ValueError over a
        bound of domain/strategies/requests.py.
        """

    async def fail_items(self, request_id: str, error: ItemError, now: datetime) -> int:
        """End all unfinished items of a request, whose run has failed; their workers lose their fences."""

    async def tally(self) -> Tally:
        """Return how many items have ever ended; it counts in the transaction that ends an item."""

    async def artifacts(
        self, request_id: str, strategy_id: str, name: str, tenants: Tenants, limit: int
    ) -> list[StoredArtifact]:
        """Return the artifacts of this name that the tenants have in the request, by tenant."""


RunState = Literal[
    "queued",
    "running",
    "succeeded",
    "failed",
    "missing",  # the runner does not have it, or no longer: it is submitted again under the same id
]


class RunConflict(SwitchyardError):
    """The runner has another run under the id of this request; a person has to look at it."""


class Run(msgspec.Struct, frozen=True):
    """A run as the runner sees it."""

    run_id: str
    state: RunState
    word: str
    """The runner's own word for the state."""


class Runner(Protocol):
    """Submitting is idempotent: a request has one run, however often it is submitted."""

    @property
    def name(self) -> RunnerName:
        """Return the name under which requests are stored for it."""

    async def submit(self, request: RecheckRequest) -> Run:
        """Start the run of a stored request, or find it. Raises RunnerDown, nothing is lost then; and RunConflict."""

    async def run(self, request_id: str) -> Run:
        """Return the run of a submitted request. Raises RunnerDown."""

    async def close(self) -> None:
        """Disconnect."""


class BooksState(msgspec.Struct, frozen=True):
    """How far the books have read the events of an account."""

    epoch: int = 0
    """With `seq`: the last of its events that was read; 0 before the first."""
    seq: int = 0
    problem: str | None = None
    """Why they do not go on."""


class StrategyFills(Protocol):
    """The ledger's entries by account and strategy."""

    async def problem(self) -> str | None:
        """Return why there are no books to read; none where there are."""

    async def state(self, account: AccountId) -> BooksState:
        """Return how far the books are with an account; in an epoch that they have adopted, where they follow it."""

    def pages(self, account: AccountId, strategy: str) -> AsyncIterator[list[LedgerEntry]]:
        """Return all entries of the strategy that move units or money, in the order of their times, in bounded pages.

        Entries with the same time come in the order of their numbers.
        """


# Bounds the memory of one read.
ORDERS_MAX = 500


class StrategyOrders(Protocol):
    """The journal's orders by strategy."""

    async def page(
        self, account: AccountId, strategy: str, window: Window, after: OrderId | None, limit: int
    ) -> list[StrategyOrder]:
        """Return the orders that arrived in the window, accepted or rejected, by id, after this one.

        At most ORDERS_MAX, each with its doubt and its arrival quote as they are now.
        """


SortField = Literal["id", "owner", "health", "last_checked_at", "created_at", "updated_at"]
# Bounds the memory of one read of the PDCA store.
PAGE_MAX = 100


class TooManyStrategies(SwitchyardError):
    """A tenant has as many strategies as it may have, all of them registered by people or clients."""


class StrategyQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which strategies to return, and in which order; equal ones are ordered by id and tenant."""

    tenants: Tenants = None
    """Of these tenants only."""
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

    new: tuple[StrategyKey, ...]
    left_out: tuple[StrategyKey, ...]
    """Strategies that were not added, because their tenants are at the bound."""


class StrategyRegistry(Protocol):
    """The strategies."""

    async def strategy(self, key: StrategyKey) -> Strategy | None:
        """Return the strategy; None if there is no such."""

    async def named(self, strategy_id: str, tenants: Tenants, limit: int) -> list[Strategy]:
        """Return the strategies of this name that the tenants have, by tenant."""

    async def strategies(self, query: StrategyQuery) -> StrategyPage:
        """Return a page of strategies, at most PAGE_MAX, and the total."""

    async def put_strategy(self, key: StrategyKey, body: StrategyBody, now: datetime) -> tuple[Strategy, bool]:
        """Register a strategy, or replace what was decided about it; returns it, and whether it is new.

        Its health stays: the next recheck judges by the new thresholds. At the bound of the tenant a new one takes the
        place of a strategy that only orders have named; raises TooManyStrategies if there is none.
        """

    async def delete_strategy(self, key: StrategyKey) -> bool:
        """Remove a strategy; returns whether there was one.

        Its rechecks stay: an item whose turn comes later fails, a running one ends without changing anything else.
        """

    async def place(self) -> Place:
        """Return the last event of the journal that was looked through for strategies."""

    async def register(self, after: Place, place: Place, keys: Sequence[StrategyKey], now: datetime) -> Registered:
        """Add the strategies that are missing and move the place, in one transaction.

        Raises HistoryMismatch, with nothing written, if the stored place is not `after`.
        """


class UnknownStrategies(SwitchyardError):
    """A request names strategies that its tenants do not have; nothing was written."""

    def __init__(self, strategy_ids: Sequence[str]) -> None:
        super().__init__(f"not registered: {', '.join(strategy_ids)}")
        self.strategy_ids = tuple(strategy_ids)


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


class RecheckRequests(Protocol):
    """The requests."""

    async def create(
        self,
        request: RecheckRequest,
        key: str,
        digest: str,
        strategy_ids: Sequence[str] | None,
        tenants: Tenants = None,
    ) -> Created:
        """Store the request with one item per strategy of the tenants, in one transaction; durable on return.

        A name that several tenants have makes one item for each of them. Without `strategy_ids`, the items are the
        strategies that the request's filter selects now. An earlier request with the same client, tenants, operation
        and key is returned instead if its digest is equal; otherwise raises IdempotencyConflict. Raises
        UnknownStrategies; InvalidField if the names stand for too many strategies.
        """

    async def request(self, request_id: str) -> StoredRequest | None:
        """Return the request; none if there is no such."""

    async def items(self, request_id: str, offset: int, limit: int, tenants: Tenants = None) -> ItemPage | None:
        """Return a page of its items, at most PAGE_MAX, with the names of their artifacts.

        Items of other tenants are left out, of the page, the progress and the times; None if all are.
        A request without items is returned for the tenants that it was created for.
        """

    async def unfinished(
        self, runner: RunnerName, *, submitted: bool, after: str = "", limit: int = PAGE_MAX
    ) -> list[StoredRequest]:
        """Return unfinished requests of the runner by request id, after this one: those it has taken, or has not."""

    async def note_run(self, request_id: str, run: RunnerInfo) -> None:
        """Replace what is known of the run of a request."""

    async def reap(self, ended_before: datetime, limit: int) -> int:
        """Remove the oldest requests that ended before this time, with their keys and artifacts; return how many."""


__all__ = [
    "PAGE_MAX",
    "Claimed",
    "Created",
    "ItemPage",
    "LostFence",
    "NewArtifact",
    "PdcaStore",
    "PdcaUnavailable",
    "RecheckQueue",
    "RecheckRequests",
    "Registered",
    "SortField",
    "StoredArtifact",
    "StoredRequest",
    "StrategyPage",
    "StrategyQuery",
    "StrategyRegistry",
    "TooManyStrategies",
    "UnknownStrategies",
]


class PdcaUnavailable(Unavailable):
    """The store could not be read or written, and nothing was written; a repeat may succeed."""


class PdcaStore(StrategyRegistry, RecheckRequests, RecheckQueue, Protocol):
    """All of it."""

    async def close(self) -> None:
        """Finish the write in progress and disconnect."""
