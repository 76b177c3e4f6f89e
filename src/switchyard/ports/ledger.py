"""The ledger port: the back office's own store of entries, positions, balances and the place that it has read to."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Protocol

import msgspec

from switchyard.domain.bus import BusEvent, Place
from switchyard.domain.errors import SwitchyardError, Unavailable
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.ledger.entries import EntryType, LedgerAccount, LedgerHead
from switchyard.domain.ledger.holdings import Holding

# Bounds the memory of one read.
ENTRIES_MAX = 1_000


class LedgerUnavailable(Unavailable):
    """The books could not be written, and nothing was; a repeat may succeed."""


class LedgerBroken(SwitchyardError):
    """The books' file failed; whether the last page was written is known only after it is opened again."""


class LedgerState(msgspec.Struct, frozen=True):
    """How far the ledger is."""

    place: Place
    """The last event that was read."""
    read_at: datetime | None
    """The time of that event."""
    head: LedgerHead


class Posted(msgspec.Struct, frozen=True):
    """What a page of events did."""

    state: LedgerState
    entries: int
    repeats: int
    """Events whose entry existed already."""
    notes: int
    """Notes on the new entries, for a person to look at."""


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
    after: int = 0
    before: int | None = None
    newest: bool = False
    """Whether the last entries of the range are wanted, instead of the first."""
    limit: int = ENTRIES_MAX


class Balance(msgspec.Struct, frozen=True):
    """The sum of an account's legs on one ledger account in one unit."""

    account: LedgerAccount
    unit: str
    amount: Decimal


class Ledger(Protocol):
    """Append-only; one process at a time."""

    async def state(self) -> LedgerState:
        """Return how far the ledger is."""
        ...

    async def post(self, after: Place, events: Sequence[BusEvent]) -> Posted:
        """Book the events and move the place to the last of them, in one transaction; durable on return.

        Raises HistoryMismatch if the stored place is not `after`, Unbookable and LedgerUnavailable, with nothing
        written; and LedgerBroken.
        """
        ...

    async def entries(self, wanted: EntryFilter) -> list[StoredEntry]:
        """Return entries in order of their numbers, at most ENTRIES_MAX."""
        ...

    async def holdings(
        self, account: AccountId, after_symbol: str, after_currency: str, limit: int, *, flat: bool = True
    ) -> list[Holding]:
        """Return positions by symbol and currency, after those; with or without flat ones."""
        ...

    async def balances(self, account: AccountId, after_unit: str, limit: int) -> list[Balance]:
        """Return the sums of the money accounts of the next `limit` currencies after this one, by currency."""
        ...
