"""The port that finds single rows of the ledger by their ids."""

from collections.abc import Sequence
from typing import Protocol

from switchyard.domain.ids import AccountId
from switchyard.domain.ledger.accounts import BookedAccount
from switchyard.ports.ledger import StoredEntry


class LedgerLookup(Protocol):
    """Rows of all accounts."""

    async def find_entries(self, entry_ids: Sequence[str]) -> list[StoredEntry]:
        """Return the entries that exist, in any order; at most ENTRIES_MAX ids."""
        ...

    async def find_account(self, account: AccountId) -> BookedAccount | None:
        """Return the account's row."""
        ...
