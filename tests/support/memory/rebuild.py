"""An in-memory journal filled from replayed events, and all of its orders read."""

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Self

from switchyard.domain.accounts.positions import Position
from switchyard.domain.ids import OrderId
from switchyard.domain.journal.changes import Change, Execution
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxRow
from switchyard.domain.risk.exposure import TotalsKey
from switchyard.domain.risk.kills import Kill, KillOrder
from switchyard.ports.books import PlacedEvent, RebuiltIdentity
from tests.support.memory.journal import MemoryJournal


class MemoryRebuild:
    """ports.books.RebuildTarget in memory; `finish` writes everything to the journal."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal
        self._events: list[PlacedEvent] = []
        self._rows = Change()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close; without `finish` the journal is unchanged."""

    async def is_empty(self) -> bool:
        """Return whether the journal has no events and no rows."""
        journal = self._journal
        rows = (journal.orders, journal.outbox, journal.keys, journal.positions, journal.executions, journal.cursors)
        return not any(rows) and not journal.kills and not any(journal.events.values())

    async def load_events(self, events: Sequence[PlacedEvent]) -> None:
        """Add the next events with their numbers, times and hashes unchanged."""
        self._events += events

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
        self._rows = Change(
            orders=tuple(orders),
            outbox=tuple(outbox),
            keys=tuple(keys),
            positions=tuple(positions),
            executions=tuple(executions),
            kills=tuple(kills),
            kill_orders=tuple(kill_orders),
        )

    async def finish(self, new: RebuiltIdentity) -> None:
        """Write the events and rows to the journal and set its identity."""
        for placed in self._events:
            self._journal.events.setdefault(placed.shard, []).append(placed.event)
        self._journal.store_rows(self._rows)
        self._journal.set_identity(new.head.epoch, new.epochs, new.installation_id, new.tag)
        self._journal.cursors[new.marker.name] = new.marker
        assert await self._journal.head(new.shard) == new.head, "the head is the last event"


class MemoryOrderDump:
    """ports.queries.OrderDump in memory."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal

    async def all_orders(self) -> AsyncIterator[Order]:
        """Yield every order of this moment, sorted by id."""
        for _, order in sorted(self._journal.orders.items()):
            yield order

    async def wrong_totals(self) -> list[TotalsKey]:
        """Return none: totals are computed from the orders for each question."""
        return []

    async def wrong_unfinished(self) -> list[OrderId]:
        """Return none: nothing is kept beside the orders."""
        return []
