"""What accounts have open, in the in-memory journal."""

from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, Position
from switchyard.domain.ids import AccountId
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order
from switchyard.ports.journal import PAGE_MAX
from switchyard.ports.queries import UnfinishedFilter
from tests.support.memory.journal import MemoryJournal


class MemoryAccounts:
    """ports.queries.Accounts in memory."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal

    async def unfinished_orders(self, wanted: UnfinishedFilter) -> list[Order]:
        """Return a page of the orders that have not ended, sorted by id."""
        found = [order for order in self._journal.orders.values() if not is_final(order.status)]
        selected = sorted(filter(wanted.selects, found), key=lambda order: order.order_id)
        return selected[: min(wanted.limit, PAGE_MAX)]

    async def open_positions(self, account_id: AccountId, *, after: str = "", limit: int) -> list[Position]:
        """Return a page of the positions that are not flat, sorted by their symbols."""
        found = [
            position
            for position in self._journal.positions.values()
            if position.account_id == account_id and position.symbol > max(after, ACCOUNT_TOTAL) and position.qty
        ]
        return sorted(found, key=lambda position: position.symbol)[: min(limit, PAGE_MAX)]
