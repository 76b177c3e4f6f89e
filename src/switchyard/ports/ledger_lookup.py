"""The port that finds rows of the ledger by their ids, or all of one account at one moment."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Protocol

import msgspec

from switchyard.domain.books.entries import BookedAccount, LedgerHead
from switchyard.domain.books.fold import BalanceKey
from switchyard.domain.books.holdings import Holding, HoldingKey
from switchyard.domain.ids import AccountId
from switchyard.ports.ledger import StoredEntry


class AccountTables(msgspec.Struct, frozen=True):
    """The positions and balances of an account, as they follow from its entries up to `head`."""

    head: LedgerHead
    holdings: dict[HoldingKey, Holding]
    balances: dict[BalanceKey, Decimal]


class LedgerLookup(Protocol):
    """Rows of all accounts."""

    async def find_entries(self, entry_ids: Sequence[str]) -> list[StoredEntry]:
        """Return the entries that exist, in any order; at most ENTRIES_MAX ids."""
        ...

    async def find_account(self, account: AccountId) -> BookedAccount | None:
        """Return the account's row."""
        ...

    async def tables(self, account: AccountId) -> AccountTables:
        """Return the account's tables and head at one moment; its positions and balances bound their size."""
        ...
