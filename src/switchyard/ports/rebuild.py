"""Making a database anew from its events, and reading all of it."""

from collections.abc import AsyncIterator, Collection, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from switchyard.domain.changes import Execution
from switchyard.domain.events import JournalEvent
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OutboxRow
from switchyard.domain.positions import Position
from switchyard.ports.journal import Head


class PlacedEvent(msgspec.Struct, frozen=True):
    """An event with the journal and shard it belongs to."""

    epoch: int
    shard: int
    event: JournalEvent


class RebuildTarget(Protocol):
    """An empty database; nothing that was loaded is there before `set_head`, the last call."""

    async def is_empty(self) -> bool:
        """Whether nothing was ever written to it."""
        ...

    async def load_events(self, events: Sequence[PlacedEvent]) -> None:
        """Take the next events, numbers, times and hashes as they are."""
        ...

    async def load_state(
        self,
        orders: Collection[Order],
        outbox: Collection[OutboxRow],
        keys: Collection[KeyEntry],
        positions: Collection[Position],
        executions: Collection[Execution],
    ) -> None:
        """Take the rows that the events have made."""
        ...

    async def set_head(self, shard: int, head: Head, at: datetime) -> None:
        """Put the journal's newest place and time, and commit everything."""
        ...


class OrderDump(Protocol):
    """All orders of one moment."""

    def all_orders(self) -> AsyncIterator[Order]:
        """Every order, sorted by the bytes of its id."""
        ...


class Epochs(Protocol):
    """The journal's identity, which changes when its past was replaced."""

    async def open_epoch(self) -> int:
        """Begin the next epoch; events from now on carry its number."""
        ...
