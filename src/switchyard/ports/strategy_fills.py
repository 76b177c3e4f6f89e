"""The strategy fill port: what the books have of one strategy, and how far they are. Reads only."""

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from switchyard.domain.ledger.entries import LedgerEntry


class BooksState(msgspec.Struct, frozen=True):
    """How far the books have read the journal."""

    seq: int
    problem: str | None = None
    """Why they do not go on."""


class StrategyFills(Protocol):
    """The ledger's entries by strategy, over all accounts."""

    async def state(self) -> BooksState:
        """Return how far the books are."""
        ...

    def pages(self, strategy: str) -> AsyncIterator[list[LedgerEntry]]:
        """Return all entries of the strategy that move units or money, in the order of their times, in bounded pages.

        Entries with the same time come in the order of their numbers, those of one account together.
        """
        ...
