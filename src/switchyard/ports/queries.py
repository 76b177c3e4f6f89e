"""Read-only lookups beside the journal: orders, keys, kills, accounts, exposures."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, Position
from switchyard.domain.ids import AccountId, KillId, OrderId, VenueName
from switchyard.domain.journal.changes import Execution
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.lifecycle import Status
from switchyard.domain.orders.order import Order
from switchyard.domain.risk.exposure import AccountExposure, CurrencyReserve, SymbolExposure, TotalsKey
from switchyard.domain.risk.kills import Kill


class OrderFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects a page of an account's orders, newest first; `before` is the last id of the previous page."""

    account_id: AccountId
    statuses: tuple[Status, ...] = ()
    symbol: str | None = None
    side: str | None = None
    strategy: str | None = None
    client_order_id: str | None = None
    before: OrderId | None = None
    limit: int = 100


class Queries(Protocol):
    """Bounded lookups over the journal and its rows; a page has at most PAGE_MAX items."""

    async def order(self, order_id: OrderId) -> Order | None:
        """Return one order."""

    async def orders(self, wanted: OrderFilter) -> list[Order]:
        """Return a page of an account's orders, newest first."""

    async def last_events(
        self,
        *,
        account_id: AccountId | None = None,
        order_id: OrderId | None = None,
        after: int = 0,
        before: int | None = None,
        limit: int,
    ) -> list[JournalEvent]:
        """Return the last events of an order or of an account between two numbers, in journal order."""

    async def events_after(
        self, seq: int, *, account_id: AccountId | None = None, order_id: OrderId | None = None, limit: int
    ) -> list[JournalEvent]:
        """Return the next events of an order or of an account after `seq`."""

    async def first_seq_at(self, at: datetime) -> int:
        """Return a number above every event before that time and not above any event at or after it."""

    async def positions(self, account_id: AccountId, *, after: str = ACCOUNT_TOTAL, limit: int) -> list[Position]:
        """Return a page of an account's positions, flat ones included, sorted by the bytes of their symbols.

        The account's own results come before all symbols, so the default leaves them out.
        """

    async def open_orders(self, venue: VenueName, *, after: OrderId | None = None, limit: int) -> list[Order]:
        """Return a page of the orders that are open at a venue according to our rows, sorted by id."""

    async def executions(self, venue: VenueName, exec_ids: Sequence[str]) -> Mapping[str, Execution]:
        """Return those of the execution ids that were recorded, with the order or stray of each."""

    async def matched_strays(self, venue: VenueName, *, after: str = "", limit: int) -> list[Execution]:
        """Return a page of a venue's reports that were filed as strays and whose order exists now, sorted by id.

        Also if the order is at another venue, or waits or is in doubt under an earlier id of the same key: it may be
        the stray's order.
        """


KeyId = tuple[str, str, str]
"""Account, operation, key."""


class Reaped(msgspec.Struct, frozen=True):
    """The result of one page of removal."""

    count: int
    """Entries removed."""
    after: KeyId | None
    """Start of the next page; None at the end."""


class KeyStore(Protocol):
    """Entries by (account, operation, key)."""

    async def entry(self, account: AccountId, operation: str, key: str) -> KeyEntry | None:
        """Return the entry of a key, even if it has expired.

        Raises OutcomeUnknown if there is one that a failover to the synchronous standby would lose.
        """

    async def entries(
        self, account: AccountId, operation: str, first: str, last: str, since: datetime, limit: int
    ) -> list[KeyEntry]:
        """Return entries created after `since` whose keys lie between `first` and `last`, both included."""

    async def reap(
        self, now: datetime, jumped_at: datetime | None, after: KeyId | None, limit: int, kept: Collection[str] = ()
    ) -> Reaped:
        """Check the next `limit` entries and remove those past `KeyEntry.expiry` whose order is final.

        Entries of the operations `kept` stay.
        """


class Kills(Protocol):
    """Bounded queries over kills; a page has at most PAGE_MAX items."""

    async def active(self) -> Sequence[Kill]:
        """Return all active kills, the oldest first; their number is bounded."""

    async def find(self, kill_id: KillId) -> Kill | None:
        """Return one kill, active or cleared."""

    async def newest(self, *, before: int | None = None, limit: int) -> Sequence[Kill]:
        """Return a page of all kills, newest first; `before` is the position of the last one of the previous page."""

    async def orders_of(
        self, kill_id: KillId, *, after: OrderId | None = None, only_open: bool = False, limit: int
    ) -> Sequence[OrderId]:
        """Return a page of the orders that were open when the kill was set, sorted by id.

        `only_open` leaves out those that have ended since.
        """


class UnfinishedFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects a page of an account's orders that have not ended, oldest first; none: any."""

    account_id: AccountId
    symbol: str | None = None
    strategy: str | None = None
    venue: VenueName | None = None
    after: OrderId | None = None
    """The last id of the previous page."""
    limit: int = 100

    def selects(self, order: Order) -> bool:
        """Whether the order belongs to what is selected, whether it has ended or not."""
        return (
            order.account_id == self.account_id
            and self.symbol in (None, order.symbol)
            and self.strategy in (None, order.strategy)
            and self.venue in (None, order.venue)
            and order.order_id > (self.after or "")
        )


class Accounts(Protocol):
    """Bounded lookups; their cost depends on what is open, not on what has ended. A page has at most PAGE_MAX items."""

    async def unfinished_orders(self, wanted: UnfinishedFilter) -> list[Order]:
        """Return a page of the orders that have not ended, sorted by id, in doubt or not sent yet included."""

    async def open_positions(self, account_id: AccountId, *, after: str = "", limit: int) -> list[Position]:
        """Return a page of the positions that are not flat, sorted by the bytes of their symbols."""


class Exposures(Protocol):
    """Reads of the totals; an answer may be older than the next commit, which checks its claims itself."""

    async def symbol_exposure(self, account: AccountId, symbol: str, *, fresh: bool = False) -> SymbolExposure:
        """Return an account in one symbol, all zero without a position; exact from the first claim of a limit on.

        Unless it has to be fresh, it may be some milliseconds older than the call.
        """

    async def account_exposure(self, account: AccountId, since: OrderId | None = None) -> AccountExposure:
        """Return all totals and positions of an account, with the number of its orders from the id `since` on."""


class Reservations(Protocol):
    """Sums over all accounts; an answer may be some moments old."""

    async def reserved(self) -> Mapping[str, CurrencyReserve]:
        """Return what the open orders of all accounts reserve, by settlement currency; empty where no limit is set."""


class OrderDump(Protocol):
    """All orders in one snapshot."""

    def all_orders(self) -> AsyncIterator[Order]:
        """Yield every order, sorted by the bytes of its id."""

    async def wrong_totals(self) -> list[TotalsKey]:
        """The accounts, symbols and currencies whose kept totals are not those of their open orders, sorted."""

    async def wrong_unfinished(self) -> list[OrderId]:
        """Orders that are wrongly kept among the unfinished ones, or are missing there, sorted; a page at most."""
