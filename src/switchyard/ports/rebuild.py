"""The port that fills an empty database from replayed events."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from switchyard.domain.accounts.positions import Position
from switchyard.domain.journal.changes import Cursor, Execution
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxRow
from switchyard.domain.risk.kills import Kill, KillOrder
from switchyard.ports.journal import Epoch, Head


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
        ...

    async def load_events(self, events: Sequence[PlacedEvent]) -> None:
        """Add the next events with their numbers, times and hashes unchanged."""
        ...

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
        ...

    async def finish(self, new: RebuiltIdentity) -> None:
        """Set the journal's identity and commit."""
        ...
