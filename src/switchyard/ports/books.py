"""The books: entries, positions and balances, breaks, and how far each source was read."""

from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Literal, Protocol

import msgspec

from switchyard.domain.accounts.positions import Position
from switchyard.domain.books.entries import (
    Adoption,
    BookedAccount,
    EntryType,
    HaltedAccount,
    LedgerAccount,
    LedgerEntry,
    LedgerHead,
    Leg,
)
from switchyard.domain.books.fold import BalanceKey
from switchyard.domain.books.holdings import Holding, HoldingKey, Result, ResultKey
from switchyard.domain.books.manual import ManualEntry
from switchyard.domain.books.postings import BookedOrder
from switchyard.domain.errors import SwitchyardError, Unavailable
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.changes import Cursor, Execution
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.journal.lines import BusEvent, SourcePosition
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxRow
from switchyard.domain.reconcile.breaks import Break, BreakClass, BreakState
from switchyard.domain.risk.kills import Kill, KillOrder
from switchyard.ports.journal import Epoch, Head

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


class SourceClaim(msgspec.Struct, frozen=True):
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

    claim: SourceClaim
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

    async def claim(self, source: str, start: SourcePosition) -> SourceClaim:
        """Raise the source's generation, durably, and return how far it was read: `start` for a new one."""

    async def post(self, claim: SourceClaim, events: Sequence[BusEvent], position: SourcePosition) -> Posted:
        """Book the events and move the source's position, in one transaction; durable on return.

        An event that its account has read before is dropped. One that cannot be booked, or whose account's event before
        it is missing, halts that account: it and the account's later events are not booked, the other accounts' are.
        Raises OwnershipLost if the source has another generation or position, and LedgerUnavailable and LedgerBroken.
        """

    async def sources(self) -> list[SourceState]:
        """Return every source that was ever claimed, by name."""

    async def reset(self, source: str, start: SourcePosition) -> None:
        """Have the source read again from `start`, by a new generation; what was read before is dropped again."""

    async def count(self) -> int:
        """Return the number of entries of all accounts."""

    async def halted(self, limit: int) -> list[HaltedAccount]:
        """Return the accounts that have halted, by id."""

    async def entries(self, wanted: EntryFilter) -> list[StoredEntry]:
        """Return entries in order of their numbers, at most ENTRIES_MAX."""

    async def strategy_entries(
        self, account: AccountId, strategy: str, after: EntryKey | None, limit: int
    ) -> list[StoredEntry]:
        """Return the next entries of an account's strategy, by time and number."""

    async def holdings(
        self, account: AccountId, after_symbol: str, after_currency: str, limit: int, *, flat: bool = True
    ) -> list[Holding]:
        """Return positions by symbol and currency, after those; with or without flat ones."""

    async def balances(self, account: AccountId, after_unit: str, limit: int) -> list[Balance]:
        """Return the sums of the money accounts of the next `limit` currencies after this one, by currency."""


class DumpedEntry(msgspec.Struct, frozen=True):
    """An entry, and its legs as their own rows have them."""

    stored: StoredEntry
    entry_id: str
    legs: tuple[Leg, ...]


class LedgerDump(Protocol):
    """All rows of a ledger; each method returns the next rows after a key, in the order of their keys."""

    async def dumped_accounts(self, after: AccountId, limit: int) -> list[BookedAccount]:
        """Return the accounts."""

    async def dumped_entries(self, account: AccountId, after: int, limit: int) -> list[DumpedEntry]:
        """Return entries of an account, by number."""

    async def dumped_orders(self, after: OrderId, limit: int) -> list[BookedOrder]:
        """Return orders of all accounts."""

    async def dumped_holdings(self, after: HoldingKey, limit: int) -> list[Holding]:
        """Return positions of one account, the key's."""

    async def dumped_balances(self, after: BalanceKey, limit: int) -> list[tuple[BalanceKey, Decimal]]:
        """Return balances of one account, the key's, by unit and ledger account."""

    async def dumped_results(self, after: ResultKey, limit: int) -> list[tuple[ResultKey, Result]]:
        """Return results of one account, the key's, by day, symbol, currency and strategy."""

    async def dumped_day_balances(
        self, after: tuple[BalanceKey, date], limit: int
    ) -> list[tuple[tuple[BalanceKey, date], Decimal]]:
        """Return the balances of one account, the key's, at the ends of days, by unit, ledger account and day."""


class AccountTables(msgspec.Struct, frozen=True):
    """The positions and balances of an account, as they follow from its entries up to `head`."""

    head: LedgerHead
    holdings: dict[HoldingKey, Holding]
    balances: dict[BalanceKey, Decimal]


class LedgerLookup(Protocol):
    """Rows of all accounts."""

    async def find_entries(self, entry_ids: Sequence[str]) -> list[StoredEntry]:
        """Return the entries that exist, in any order; at most ENTRIES_MAX ids."""

    async def find_account(self, account: AccountId) -> BookedAccount | None:
        """Return the account's row."""

    async def tables(self, account: AccountId) -> AccountTables:
        """Return the account's tables and head at one moment; its positions and balances bound their size."""


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

    async def closing_balances(self, account: AccountId, day: date, after_unit: str, limit: int) -> list[Balance]:
        """Return the money accounts of the next `limit` currencies at the end of a day."""

    async def closing_holdings(
        self, account: AccountId, day: date, after: tuple[str, str], limit: int
    ) -> list[Holding]:
        """Return the positions that were not flat at the end of a day, by symbol and currency."""

    async def open_holdings(self, account: AccountId, strategies: bool, limit: int) -> list[Holding]:
        """Return the positions that are not flat now: of the account, or of its strategies."""


class Entered(msgspec.Struct, frozen=True):
    """An entry by a person, as it is stored."""

    entry: StoredEntry
    repeated: bool
    """Whether it was there before, by the same key and content."""


class ManualLedger(Protocol):
    """Entries that no event of the journal makes; each commits alone."""

    async def enter(self, wanted: ManualEntry, at: datetime) -> Entered:
        """Book an entry by a person at the end of its account's chain; durable on return.

        Raises InvalidField, ManualConflict where the key was used for something else, LedgerUnavailable where nothing
        was booked, and OutcomeUnknown where it may be: the same key books once. A ledger with a clock of its own
        rejects a time that is ahead of it.
        """

    async def adopt(self, adoption: Adoption, source: str, position: SourcePosition) -> int:
        """Follow the journal of a new epoch from this position on, and return how many entries it does not have.

        These are the orphans: what is booked stays. The source gets a new generation.
        """

    async def adoptions(self) -> list[Adoption]:
        """Return the adoptions, by epoch."""

    async def orphans(self, after: tuple[AccountId, int], limit: int) -> list[StoredEntry]:
        """Return the entries that the adopted journal does not have, by account and number, after that one.

        They stay in the books, with their effect on positions and balances, until a person reverses them. An entry
        whose execution the journal reports again is an orphan no more.
        """

    async def carried(self, account: AccountId, after: int, limit: int) -> list[StoredEntry]:
        """Return the entries of an account that a rebuild must carry over, by number: people's, and orphans."""

    async def carry(self, entry: LedgerEntry) -> None:
        """Book an entry of other books at the end of its account's chain, in a rebuild."""


class PlacedEvent(msgspec.Struct, frozen=True):
    """An event with its epoch and shard."""

    epoch: int
    shard: int
    event: JournalEvent


class RebuiltIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a rebuilt journal."""

    shard: int
    head: Head
    at: datetime
    """The time of the last event."""
    epochs: Sequence[Epoch]
    installation_id: str | None
    """The identity that the replayed file shows; the database keeps its own where this or `tag` is none."""
    tag: str | None
    marker: Cursor
    """Keeps every process from starting before the rebuilt database was declared restored."""


class RebuildTarget(Protocol):
    """A database in one transaction: loaded data becomes visible with `finish`, the last call."""

    async def is_empty(self) -> bool:
        """Return whether the database has no events and no rows."""

    async def load_events(self, events: Sequence[PlacedEvent]) -> None:
        """Add the next events with their numbers, times and hashes unchanged."""

    async def load_state(
        self,
        orders: Collection[Order],
        outbox: Collection[OutboxRow],
        keys: Collection[KeyEntry],
        positions: Collection[Position],
        executions: Collection[Execution],
        kills: Collection[Kill] = (),
        kill_orders: Collection[KillOrder] = (),
    ) -> None:
        """Add the rows derived from the events."""

    async def finish(self, new: RebuiltIdentity) -> None:
        """Set the journal's identity and commit."""


# Bounds the memory of one read: a page of 1,000, and one break more that shows whether there is another page.
BREAKS_MAX = 1_001


class BreakFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects a page of breaks, sorted by id."""

    states: tuple[BreakState, ...]
    account_id: AccountId | None = None
    """None: of all accounts, and those of none."""
    after: str = ""
    limit: int = BREAKS_MAX


class BreakStore(Protocol):
    """Breaks are never deleted; raises Unavailable where the store does not answer."""

    async def page(self, wanted: BreakFilter) -> list[Break]:
        """Return breaks sorted by id, at most BREAKS_MAX."""

    async def find(self, break_ids: Sequence[str]) -> dict[str, Break]:
        """Return those that exist, closed ones included."""

    async def save(self, breaks: Sequence[Break]) -> int:
        """Write each in its newest version, in one transaction; returns how many were written.

        A break of version n needs version n-1 in the store, the same version n (by `changed_at`), or none for a new
        one; another one is left out, because a person or another process changed it meanwhile. Each new version is
        added to the history.
        """

    async def history(self, break_id: str, limit: int) -> list[Break]:
        """Return the newest versions of a break, the newest first, at most BREAKS_MAX."""

    async def counts(self) -> Mapping[tuple[BreakClass, BreakState], int]:
        """Return how many breaks there are by class and state."""
