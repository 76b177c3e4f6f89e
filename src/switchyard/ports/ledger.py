"""The ledger port: the back office's own store of entries, positions, balances, and how far each source was read."""

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Protocol

import msgspec

from switchyard.domain.books.entries import EntryType, HaltedAccount, LedgerAccount
from switchyard.domain.books.holdings import Holding
from switchyard.domain.errors import SwitchyardError, Unavailable
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.lines import BusEvent, SourcePosition

# Bounds the memory of one read: a page of 1,000, and one entry more that shows whether there is another page.
ENTRIES_MAX = 1_001


class LedgerUnavailable(Unavailable):
    """The books could not be read or written, or whether they were written is unknown: claim the source again."""


class LedgerBroken(SwitchyardError):
    """The books' file failed; whether the last page was written is known only after it is opened again."""


class OwnershipLost(SwitchyardError):
    """Another process has claimed the source, or moved its position; nothing was written."""

    def __init__(self, source: str, why: str) -> None:
        super().__init__(f"the books' source {source} belongs to another process: {why}")
        self.source = source


class Claim(msgspec.Struct, frozen=True):
    """The right to post from a source, until another claim of it."""

    source: str
    generation: int
    """Counts the claims of the source: a posting with an older one is rejected."""
    position: SourcePosition
    """How far the source was read."""


class SourceState(msgspec.Struct, frozen=True):
    """How far a source was read, for people."""

    source: str
    position: SourcePosition
    generation: int
    read_at: datetime | None
    """The time of the last event that was read from it."""


class Posted(msgspec.Struct, frozen=True):
    """What a page of events did."""

    claim: Claim
    """For the next page."""
    read_at: datetime | None
    entries: int
    skipped: int
    """Events that made no entry."""
    repeats: int
    """Events that were read before, or whose entry existed already."""
    notes: int
    """Notes on the new entries, for a person to look at."""
    halted: int
    """Accounts that have halted, or go on, since this page; `Ledger.halted` has all that are halted."""


class StoredEntry(msgspec.Struct, frozen=True):
    """An entry as it is stored."""

    number: int
    text: str
    hash: str


class EntryFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries of an account to return."""

    account_id: AccountId
    order_id: OrderId | None = None
    type: EntryType | None = None
    since: datetime | None = None
    """The earliest time, inclusive."""
    day: date | None = None
    """The day that they belong to."""
    after: int = 0
    before: int | None = None
    newest: bool = False
    """Whether the last entries of the range are wanted, instead of the first."""
    limit: int = ENTRIES_MAX


class EntryKey(msgspec.Struct, frozen=True):
    """The place of an entry among those of its account: by time and number."""

    at: datetime
    number: int


class Balance(msgspec.Struct, frozen=True):
    """The sum of an account's legs on one ledger account in one unit."""

    account: LedgerAccount
    unit: str
    amount: Decimal


class Ledger(Protocol):
    """Append-only; each source has one owner at a time, which is the process of its last claim."""

    async def claim(self, source: str, start: SourcePosition) -> Claim:
        """Raise the source's generation, durably, and return how far it was read: `start` for a new one."""
        ...

    async def post(self, claim: Claim, events: Sequence[BusEvent], position: SourcePosition) -> Posted:
        """Book the events and move the source's position, in one transaction; durable on return.

        An event that its account has read before is dropped. One that cannot be booked, or whose account's event before
        it is missing, halts that account: it and the account's later events are not booked, the other accounts' are.
        Raises OwnershipLost if the source has another generation or position, and LedgerUnavailable and LedgerBroken.
        """
        ...

    async def sources(self) -> list[SourceState]:
        """Return every source that was ever claimed, by name."""
        ...

    async def reset(self, source: str, start: SourcePosition) -> None:
        """Have the source read again from `start`, by a new generation; what was read before is dropped again."""
        ...

    async def count(self) -> int:
        """Return the number of entries of all accounts."""
        ...

    async def halted(self, limit: int) -> list[HaltedAccount]:
        """Return the accounts that have halted, by id."""
        ...

    async def entries(self, wanted: EntryFilter) -> list[StoredEntry]:
        """Return entries in order of their numbers, at most ENTRIES_MAX."""
        ...

    async def strategy_entries(
        self, account: AccountId, strategy: str, after: EntryKey | None, limit: int
    ) -> list[StoredEntry]:
        """Return the next entries of an account's strategy, by time and number."""
        ...

    async def holdings(
        self, account: AccountId, after_symbol: str, after_currency: str, limit: int, *, flat: bool = True
    ) -> list[Holding]:
        """Return positions by symbol and currency, after those; with or without flat ones."""
        ...

    async def balances(self, account: AccountId, after_unit: str, limit: int) -> list[Balance]:
        """Return the sums of the money accounts of the next `limit` currencies after this one, by currency."""
        ...
