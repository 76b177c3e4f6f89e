"""The query port: read-only lookups of orders, events, positions and executions."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, Position
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.journal.changes import Execution
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.orders.lifecycle import Status
from switchyard.domain.orders.order import Order


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
        ...

    async def orders(self, wanted: OrderFilter) -> list[Order]:
        """Return a page of an account's orders, newest first."""
        ...

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
        ...

    async def events_after(
        self, seq: int, *, account_id: AccountId | None = None, order_id: OrderId | None = None, limit: int
    ) -> list[JournalEvent]:
        """Return the next events of an order or of an account after `seq`."""
        ...

    async def first_seq_at(self, at: datetime) -> int:
        """Return a number above every event before that time and not above any event at or after it."""
        ...

    async def positions(self, account_id: AccountId, *, after: str = ACCOUNT_TOTAL, limit: int) -> list[Position]:
        """Return a page of an account's positions, flat ones included, sorted by the bytes of their symbols.

        The account's own results come before all symbols, so the default leaves them out.
        """
        ...

    async def open_orders(self, venue: VenueName, *, after: OrderId | None = None, limit: int) -> list[Order]:
        """Return a page of the orders that are open at a venue according to our rows, sorted by id."""
        ...

    async def executions(self, venue: VenueName, exec_ids: Sequence[str]) -> Mapping[str, Execution]:
        """Return those of the execution ids that were recorded, with the order or stray of each."""
        ...

    async def matched_strays(self, venue: VenueName, *, after: str = "", limit: int) -> list[Execution]:
        """Return a page of a venue's reports that were filed as strays and whose order exists now, sorted by id.

        Also if the order is at another venue, or waits or is in doubt under an earlier id of the same key: it may be
        the stray's order.
        """
        ...
