"""The port of the ledger's reports: P&L by day, symbol and strategy, and balances and positions at the end of a day."""

from datetime import date
from typing import Literal, Protocol

import msgspec

from switchyard.domain.books.holdings import Holding, Result
from switchyard.domain.ids import AccountId
from switchyard.ports.ledger import Balance

ResultsBy = Literal["day", "symbol", "strategy"]


class ResultGroup(msgspec.Struct, frozen=True):
    """The results of one day, symbol or strategy in one currency."""

    name: str
    """The day as YYYY-MM-DD, the symbol or the strategy; empty for none."""
    currency: str
    result: Result


class LedgerReports(Protocol):
    """Read-only; each method returns the next rows after a key, in the order of their keys."""

    async def results(
        self, account: AccountId, by: ResultsBy, days: tuple[date, date], after: tuple[str, str], limit: int
    ) -> list[ResultGroup]:
        """Return the results of the days from the first to the last, by name and currency."""
        ...

    async def closing_balances(self, account: AccountId, day: date, after_unit: str, limit: int) -> list[Balance]:
        """Return the money accounts of the next `limit` currencies at the end of a day."""
        ...

    async def closing_holdings(
        self, account: AccountId, day: date, after: tuple[str, str], limit: int
    ) -> list[Holding]:
        """Return the positions that were not flat at the end of a day, by symbol and currency."""
        ...

    async def open_holdings(self, account: AccountId, strategies: bool, limit: int) -> list[Holding]:
        """Return the positions that are not flat now: of the account, or of its strategies."""
        ...
