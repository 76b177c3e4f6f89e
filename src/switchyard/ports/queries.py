"""Reads that decide nothing: what people and stages look up."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol

import msgspec

from switchyard.domain.events import JournalEvent
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.lifecycle import Status
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState, OutboxRow
from switchyard.domain.positions import Position


class OrderFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which of an account's orders to list, newest first; `before` is the last id of the page before."""

    account_id: AccountId
    statuses: tuple[Status, ...] = ()
    symbol: str | None = None
    side: str | None = None
    strategy: str | None = None
    client_order_id: str | None = None
    before: OrderId | None = None
    limit: int = 100


class Due(msgspec.Struct, frozen=True):
    """An outbox row whose time has come, with its order's state."""

    row: OutboxRow
    state: OrderState
    reported_before: bool = False
    """Whether the venue reported on the order's client id when nobody here knew it.

    After an older database was restored, a repeated key makes its order anew, under the id under which the lost one was
    executed.
    """


class OutboxCount(msgspec.Struct, frozen=True):
    """How many outbox rows are unfinished in one status, and since when the oldest waits."""

    status: str
    rows: int
    oldest_created_at: datetime | None


class Queries(Protocol):
    """Bounded lookups over the journal and its rows."""

    async def order(self, order_id: OrderId) -> Order | None:
        """One order."""
        ...

    async def orders(self, wanted: OrderFilter) -> list[Order]:
        """One page of an account's orders, newest first."""
        ...

    async def last_events(
        self, *, account_id: AccountId | None = None, order_id: OrderId | None = None, limit: int
    ) -> list[JournalEvent]:
        """The newest events of either an order or an account, oldest of them first."""
        ...

    async def events_after(
        self, seq: int, *, account_id: AccountId | None = None, order_id: OrderId | None = None, limit: int
    ) -> list[JournalEvent]:
        """The next events of either an order or an account after a journal number."""
        ...

    async def due(
        self,
        now: datetime,
        limit: int,
        venues: Sequence[VenueName] | None = None,
        lanes: Sequence[int] | None = None,
    ) -> list[Due]:
        """Rows to send now, in the order of acceptance; a cancel only once its order is settled as sent.

        With `venues`, only what goes to one of these; with `lanes`, only what is in one of those.
        """
        ...

    async def unsettled(self, status: Literal["sending", "uncertain"], limit: int) -> list[Due]:
        """Rows whose attempt has no outcome yet, or one in doubt, in the order of acceptance."""
        ...

    async def oldest_unsent(self, venues: Sequence[VenueName]) -> Mapping[VenueName, datetime]:
        """When the order at the head of each venue's queue was accepted, where one waits for its first attempt."""
        ...

    async def positions(self, account_id: AccountId, *, after: str = "", limit: int) -> list[Position]:
        """One page of an account's positions, flat ones too, sorted by the bytes of their symbols."""
        ...

    async def open_orders(self, venue: VenueName, *, after: OrderId | None = None, limit: int) -> list[Order]:
        """One page of the orders that a venue is believed to have and that have not ended, by their ids."""
        ...

    async def executions(self, venue: VenueName, exec_ids: Sequence[str]) -> frozenset[str]:
        """Of the named reports those that were applied to an order."""
        ...

    async def outbox_counts(self) -> Sequence[OutboxCount]:
        """Unfinished outbox rows by status."""
        ...
