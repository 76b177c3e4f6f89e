"""The requests port: accepted rechecks, their runs and their progress."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from switchyard.domain.errors import SwitchyardError
from switchyard.domain.strategies.registry import Tenants
from switchyard.domain.strategies.requests import Progress, RecheckItem, RecheckRequest, RunnerInfo, RunnerName
from switchyard.ports.strategy_registry import PAGE_MAX


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
        ...

    async def request(self, request_id: str) -> StoredRequest | None:
        """Return the request; none if there is no such."""
        ...

    async def items(self, request_id: str, offset: int, limit: int, tenants: Tenants = None) -> ItemPage | None:
        """Return a page of its items, at most PAGE_MAX, with the names of their artifacts.

        Items of other tenants are left out, of the page, the progress and the times; None if all are.
        A request without items is returned for the tenants that it was created for.
        """
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
