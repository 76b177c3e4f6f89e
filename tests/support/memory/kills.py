"""Kills of the in-memory journal."""

from collections.abc import Sequence

from switchyard.domain.ids import KillId, OrderId
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.risk.kills import Kill
from switchyard.ports.journal import PAGE_MAX, SEQ_LIMIT
from tests.support.memory.journal import MemoryJournal


class MemoryKills:
    """ports.queries.Kills in memory."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal

    async def active(self) -> Sequence[Kill]:
        """Return all active kills, the oldest first."""
        return sorted((kill for kill in self._journal.kills.values() if kill.is_active), key=lambda kill: kill.seq)

    async def find(self, kill_id: KillId) -> Kill | None:
        """Return one kill."""
        return self._journal.kills.get(kill_id)

    async def newest(self, *, before: int | None = None, limit: int) -> Sequence[Kill]:
        """Return a page of all kills, newest first."""
        end = SEQ_LIMIT if before is None else before
        found = [kill for kill in self._journal.kills.values() if kill.seq < end]
        return sorted(found, key=lambda kill: -kill.seq)[: min(limit, PAGE_MAX)]

    async def orders_of(
        self, kill_id: KillId, *, after: OrderId | None = None, only_open: bool = False, limit: int
    ) -> Sequence[OrderId]:
        """Return a page of the orders that were open when the kill was set, sorted by id."""
        found = sorted(
            row.order_id
            for row in self._journal.kill_orders
            if row.kill_id == kill_id
            and row.order_id > (after or "")
            and not (only_open and self._has_ended(row.order_id))
        )
        return found[: min(limit, PAGE_MAX)]

    def _has_ended(self, order_id: OrderId) -> bool:
        return is_final(self._journal.orders[order_id].status)
