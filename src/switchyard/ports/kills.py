"""The kill port: read-only queries of kills and of the orders that each has to end."""

from collections.abc import Sequence
from typing import Protocol

from switchyard.domain.ids import KillId, OrderId
from switchyard.domain.risk.kills import Kill


class Kills(Protocol):
    """Bounded queries over kills; a page has at most PAGE_MAX items."""

    async def active(self) -> Sequence[Kill]:
        """Return all active kills, the oldest first; their number is bounded."""
        ...

    async def find(self, kill_id: KillId) -> Kill | None:
        """Return one kill, active or cleared."""
        ...

    async def newest(self, *, before: int | None = None, limit: int) -> Sequence[Kill]:
        """Return a page of all kills, newest first; `before` is the position of the last one of the previous page."""
        ...

    async def orders_of(
        self, kill_id: KillId, *, after: OrderId | None = None, only_open: bool = False, limit: int
    ) -> Sequence[OrderId]:
        """Return a page of the orders that were open when the kill was set, sorted by id.

        `only_open` leaves out those that have ended since.
        """
        ...
