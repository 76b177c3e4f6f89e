"""The break store port: breaks and every version that they had."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from switchyard.domain.ids import AccountId
from switchyard.domain.reconcile.breaks import Break, BreakClass, BreakState

# Bounds the memory of one read: a page of 1,000, and one break more that shows whether there is another page.
BREAKS_MAX = 1_001


class BreakFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects a page of breaks, sorted by id."""

    states: tuple[BreakState, ...]
    account_id: AccountId | None = None
    """None: of all accounts, and those of none."""
    after: str = ""
    limit: int = BREAKS_MAX


class BreakStore(Protocol):
    """Breaks are never deleted; raises Unavailable where the store does not answer."""

    async def page(self, wanted: BreakFilter) -> list[Break]:
        """Return breaks sorted by id, at most BREAKS_MAX."""
        ...

    async def find(self, break_ids: Sequence[str]) -> dict[str, Break]:
        """Return those that exist, closed ones included."""
        ...

    async def save(self, breaks: Sequence[Break]) -> int:
        """Write each in its newest version, in one transaction; returns how many were written.

        A break of version n needs version n-1 in the store, the same version n (by `changed_at`), or none for a new
        one; another one is left out, because a person or another process changed it meanwhile. Each new version is
        added to the history.
        """
        ...

    async def history(self, break_id: str, limit: int) -> list[Break]:
        """Return the newest versions of a break, the newest first, at most BREAKS_MAX."""
        ...

    async def counts(self) -> Mapping[tuple[BreakClass, BreakState], int]:
        """Return how many breaks there are by class and state."""
        ...
