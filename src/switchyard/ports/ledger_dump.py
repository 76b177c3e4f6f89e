"""The port of a whole ledger, page by page, for checks; see `ports/ledger.py` for its everyday use."""

from datetime import date
from decimal import Decimal
from typing import Protocol

import msgspec

from switchyard.domain.books.entries import BookedAccount, Leg
from switchyard.domain.books.fold import BalanceKey
from switchyard.domain.books.holdings import Holding, HoldingKey, Result, ResultKey
from switchyard.domain.books.postings import BookedOrder
from switchyard.domain.ids import AccountId, OrderId
from switchyard.ports.ledger import StoredEntry


class DumpedEntry(msgspec.Struct, frozen=True):
    """An entry, and its legs as their own rows have them."""

    stored: StoredEntry
    entry_id: str
    legs: tuple[Leg, ...]


class LedgerDump(Protocol):
    """All rows of a ledger; each method returns the next rows after a key, in the order of their keys."""

    async def dumped_accounts(self, after: AccountId, limit: int) -> list[BookedAccount]:
        """Return the accounts."""
        ...

    async def dumped_entries(self, account: AccountId, after: int, limit: int) -> list[DumpedEntry]:
        """Return entries of an account, by number."""
        ...

    async def dumped_orders(self, after: OrderId, limit: int) -> list[BookedOrder]:
        """Return orders of all accounts."""
        ...

    async def dumped_holdings(self, after: HoldingKey, limit: int) -> list[Holding]:
        """Return positions of one account, the key's."""
        ...

    async def dumped_balances(self, after: BalanceKey, limit: int) -> list[tuple[BalanceKey, Decimal]]:
        """Return balances of one account, the key's, by unit and ledger account."""
        ...

    async def dumped_results(self, after: ResultKey, limit: int) -> list[tuple[ResultKey, Result]]:
        """Return results of one account, the key's, by day, symbol, currency and strategy."""
        ...

    async def dumped_day_balances(
        self, after: tuple[BalanceKey, date], limit: int
    ) -> list[tuple[tuple[BalanceKey, date], Decimal]]:
        """Return the balances of one account, the key's, at the ends of days, by unit, ledger account and day."""
        ...
