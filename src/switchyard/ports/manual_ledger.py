"""The port of what people do to the ledger: entries of their own, and the adoption of a restored journal."""

from datetime import datetime
from typing import Protocol

import msgspec

from switchyard.domain.books.entries import Adoption, LedgerEntry
from switchyard.domain.books.manual import ManualEntry
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.lines import SourcePosition
from switchyard.ports.ledger import StoredEntry


class Entered(msgspec.Struct, frozen=True):
    """An entry by a person, as it is stored."""

    entry: StoredEntry
    repeated: bool
    """Whether it was there before, by the same key and content."""


class ManualLedger(Protocol):
    """Entries that no event of the journal makes; each commits alone."""

    async def enter(self, wanted: ManualEntry, at: datetime) -> Entered:
        """Book an entry by a person at the end of its account's chain; durable on return.

        Raises InvalidField, ManualConflict where the key was used for something else, and LedgerUnavailable. A ledger
        with a clock of its own rejects a time that is ahead of it.
        """
        ...

    async def adopt(self, adoption: Adoption, source: str, position: SourcePosition) -> int:
        """Follow the journal of a new epoch from this position on, and return how many entries it does not have.

        These are the orphans: what is booked stays. The source gets a new generation.
        """
        ...

    async def adoptions(self) -> list[Adoption]:
        """Return the adoptions, by epoch."""
        ...

    async def orphans(self, after: tuple[AccountId, int], limit: int) -> list[StoredEntry]:
        """Return the entries that the adopted journal does not have, by account and number, after that one.

        They stay in the books, with their effect on positions and balances, until a person reverses them. An entry
        whose execution the journal reports again is an orphan no more.
        """
        ...

    async def carried(self, account: AccountId, after: int, limit: int) -> list[StoredEntry]:
        """Return the entries of an account that a rebuild must carry over, by number: people's, and orphans."""
        ...

    async def carry(self, entry: LedgerEntry) -> None:
        """Book an entry of other books at the end of its account's chain, in a rebuild."""
        ...
