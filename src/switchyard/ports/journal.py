"""The one write port: load rows, append changes, read events."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from switchyard.domain.changes import Change, Cursor, Outcome
from switchyard.domain.events import JournalEvent
from switchyard.domain.ids import OrderId, VenueClientOrderId
from switchyard.domain.outbox import OrderState
from switchyard.domain.positions import Position, PositionKey

# A page is what one read may hold in memory; readers loop.
PAGE_MAX = 1_000


class Head(msgspec.Struct, frozen=True):
    """The journal's newest place; seq 0 and the genesis hash when it is empty."""

    epoch: int
    seq: int
    hash: str


class Lines(msgspec.Struct, frozen=True):
    """The next events as the audit file has them; `last` is where they end."""

    text: bytes
    count: int
    last: Head


class Journal(Protocol):
    """The append-only, gap-free, hash-chained record and the rows derived from it."""

    async def load(self, order_ids: Sequence[OrderId]) -> Mapping[OrderId, OrderState]:
        """The orders that exist, each with all of its outbox rows."""
        ...

    async def load_by_client_order_id(
        self, ids: Sequence[VenueClientOrderId]
    ) -> Mapping[VenueClientOrderId, OrderState]:
        """The same, found by the ids that a venue knows."""
        ...

    async def load_positions(self, keys: Sequence[PositionKey]) -> Mapping[PositionKey, Position]:
        """Of the named positions those that ever had a fill."""
        ...

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Commit a group at once and answer for each change; durable when this returns.

        Changes of one group touch different rows (the sequencer sees to it). A rejected change harms no other.
        The same `group_id` again changes nothing and answers the same, so a lost answer is asked for again; a group
        of which everything was rejected is not remembered, and judged anew.
        Raises GroupRejected when a value cannot be written, JournalUnavailable when certainly nothing was written,
        OutcomeUnknown when that is not certain. Reads raise JournalUnavailable.
        """
        ...

    async def read(self, shard: int, after_seq: int, limit: int) -> list[JournalEvent]:
        """The next events in order, at most a page."""
        ...

    async def lines(self, shard: int, after_seq: int, limit: int) -> Lines | None:
        """The same as whole lines in one piece, put together by the database; none where there are none."""
        ...

    async def head(self, shard: int) -> Head:
        """The newest place."""
        ...

    async def cursor(self, name: str) -> Cursor | None:
        """How far the named reader has come."""
        ...
