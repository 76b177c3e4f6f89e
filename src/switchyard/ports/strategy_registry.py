"""The registry port: the strategies, and how far the journal was looked through for them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Protocol

import msgspec

from switchyard.domain.bus import Place
from switchyard.domain.errors import SwitchyardError
from switchyard.domain.pdca.requests import Filter
from switchyard.domain.pdca.strategies import Strategy, StrategyBody

SortField = Literal["id", "owner", "health", "last_checked_at", "created_at", "updated_at"]
# Bounds the memory of one read of the PDCA store.
PAGE_MAX = 100


class TooManyStrategies(SwitchyardError):
    """The registry is at its bound."""


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
