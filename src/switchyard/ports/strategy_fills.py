"""The strategy fill port: what the books have of one strategy of an account, and how far they are. Reads only."""

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from switchyard.domain.books.entries import LedgerEntry
from switchyard.domain.ids import AccountId


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
        ...

    async def state(self, account: AccountId) -> BooksState:
        """Return how far the books are with an account; in an epoch that they have adopted, where they follow it."""
        ...

    def pages(self, account: AccountId, strategy: str) -> AsyncIterator[list[LedgerEntry]]:
        """Return all entries of the strategy that move units or money, in the order of their times, in bounded pages.

        Entries with the same time come in the order of their numbers.
        """
        ...
