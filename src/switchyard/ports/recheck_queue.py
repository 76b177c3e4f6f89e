"""The queue port: the items of rechecks as work, claimed by workers and ended once, with their artifacts."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from switchyard.domain.errors import SwitchyardError
from switchyard.domain.strategies.registry import Strategy, Tenant, Tenants
from switchyard.domain.strategies.requests import Artifact, Fence, ItemError, ItemResult, RecheckRequest, Tally


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
        strategy has those of a request that was accepted later, or was deleted. Raises LostFence; ValueError over a
        bound of domain/pdca/requests.py.
        """
        ...

    async def fail_items(self, request_id: str, error: ItemError, now: datetime) -> int:
        """End all unfinished items of a request, whose run has failed; their workers lose their fences."""
        ...

    async def tally(self) -> Tally:
        """Return how many items have ever ended; it counts in the transaction that ends an item."""
        ...

    async def artifacts(
        self, request_id: str, strategy_id: str, name: str, tenants: Tenants, limit: int
    ) -> list[StoredArtifact]:
        """Return the artifacts of this name that the tenants have in the request, by tenant."""
        ...
