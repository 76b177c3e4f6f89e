"""The registry port: the strategies, and how far the journal was looked through for them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Protocol

import msgspec

from switchyard.domain.errors import SwitchyardError
from switchyard.domain.journal.lines import Place
from switchyard.domain.strategies.registry import Strategy, StrategyBody, StrategyKey, Tenants
from switchyard.domain.strategies.requests import Filter

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
        ...

    async def named(self, strategy_id: str, tenants: Tenants, limit: int) -> list[Strategy]:
        """Return the strategies of this name that the tenants have, by tenant."""
        ...

    async def strategies(self, query: StrategyQuery) -> StrategyPage:
        """Return a page of strategies, at most PAGE_MAX, and the total."""
        ...

    async def put_strategy(self, key: StrategyKey, body: StrategyBody, now: datetime) -> tuple[Strategy, bool]:
        """Register a strategy, or replace what was decided about it; returns it, and whether it is new.

        Its health stays: the next recheck judges by the new thresholds. At the bound of the tenant a new one takes the
        place of a strategy that only orders have named; raises TooManyStrategies if there is none.
        """
        ...

    async def delete_strategy(self, key: StrategyKey) -> bool:
        """Remove a strategy; returns whether there was one.

        Its rechecks stay: an item whose turn comes later fails, a running one ends without changing anything else.
        """
        ...

    async def place(self) -> Place:
        """Return the last event of the journal that was looked through for strategies."""
        ...

    async def register(self, after: Place, place: Place, keys: Sequence[StrategyKey], now: datetime) -> Registered:
        """Add the strategies that are missing and move the place, in one transaction.

        Raises HistoryMismatch, with nothing written, if the stored place is not `after`.
        """
        ...
