"""The port that lists outbox rows for operators, beside a running process."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Protocol

from switchyard.domain.ids import OrderId
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxRow

# The newest one is shown; a few more in case that it is about another row of the order.
DOUBTS_MAX: Final = 20


class OutboxListing(Protocol):
    """Outbox rows by status; needs no lock on the database."""

    async def rows(self, status: str, limit: int) -> Sequence[OutboxRow]:
        """Return rows of one status, oldest first."""
        ...

    async def rows_of(self, order_id: OrderId) -> Sequence[OutboxRow]:
        """Return the rows of one order, sorted by their keys; none if there is no such order."""
        ...

    async def history_of(self, order_id: OrderId, limit: int) -> tuple[Order, Sequence[JournalEvent]] | None:
        """Return one order with its first events, in journal order; none if there is no such order."""
        ...

    async def doubts_of(self, order_id: OrderId) -> Sequence[JournalEvent]:
        """Return the last `OrderUncertain` events of one order, newest first."""
        ...

    async def cursors(self, names: Sequence[str]) -> tuple[Mapping[str, str], datetime]:
        """Return the texts of the cursors of these names that exist, and the database's time."""
        ...
