"""The journal port: load rows, append changes, read events."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from switchyard.domain.accounts.positions import Position, PositionKey
from switchyard.domain.ids import OrderId, VenueClientOrderId
from switchyard.domain.journal.changes import Change, Cursor, Outcome
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.orders.outbox import OrderState

# Bounds the memory of one read; readers loop over pages.
PAGE_MAX = 1_000
# Above every event's number; the largest 64-bit integer of both databases.
SEQ_LIMIT = 2**63 - 1


class Head(msgspec.Struct, frozen=True):
    """The journal's last event; an empty journal has seq 0 and the genesis hash."""

    epoch: int
    seq: int
    hash: str


class Epoch(msgspec.Struct, frozen=True):
    """An epoch of the journal; the numbers between `after_seq` and `first_seq` belong to no event."""

    epoch: int
    first_seq: int
    """The number of its first event, which may not exist yet."""
    after_seq: int
    """The journal's last number before it; 0 for the first epoch."""


class Lines(msgspec.Struct, frozen=True):
    """A page of events as audit file lines; `last` is the last of them."""

    text: bytes
    count: int
    last: Head


class Journal(Protocol):
    """The append-only, gap-free, hash-chained event log and the rows derived from it."""

    async def load(self, order_ids: Sequence[OrderId]) -> Mapping[OrderId, OrderState]:
        """Return the orders that exist, each with all of its outbox rows."""
        ...

    async def load_by_client_order_id(
        self, ids: Sequence[VenueClientOrderId]
    ) -> Mapping[VenueClientOrderId, OrderState]:
        """Return the orders with these venue client order ids, or with amends of these ids, with all outbox rows."""
        ...

    async def load_positions(self, keys: Sequence[PositionKey]) -> Mapping[PositionKey, Position]:
        """Return the positions that exist; a position exists from its first fill on."""
        ...

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Commit a group of changes in one transaction and return an outcome for each; durable on return.

        No two changes of a group may write the same row (the sequencer ensures this). A conflict rejects one change
        and leaves the others alone. A repeated `group_id` writes nothing and returns the first outcomes, so a caller
        that lost the answer appends again; a group in which every change conflicted is not stored and is checked again.
        Raises GroupRejected if a value cannot be stored, JournalUnavailable if certainly nothing was written, and
        OutcomeUnknown if that is not certain. The other methods raise JournalUnavailable, also for what a failover to
        the synchronous standby would lose.

        Raises HistoryMismatch, and writes nothing, if the database no longer has the last event that this object has
        `seen` or has another epoch: an older database is in its place.
        """
        ...

    async def read(self, shard: int, after_seq: int, limit: int) -> list[JournalEvent]:
        """Return the next events in order, at most PAGE_MAX."""
        ...

    async def lines(self, shard: int, after_seq: int, limit: int) -> Lines | None:
        """Return the next events as lines, concatenated by the database; None if there are none."""
        ...

    async def head(self, shard: int) -> Head:
        """Return the last event's place."""
        ...

    def seen(self, shard: int) -> Head | None:
        """Return the head after the last append or, before that, at the first call of `head`; none before both."""
        ...

    async def last_event(self, shard: int, up_to_seq: int) -> Head:
        """Return the place of the last event with a number up to this one; seq 0 and the genesis hash if none."""
        ...

    async def epochs(self, shard: int) -> list[Epoch]:
        """Return all epochs, the oldest first."""
        ...

    async def cursor(self, name: str) -> Cursor | None:
        """Return the stored position of a reader."""
        ...
