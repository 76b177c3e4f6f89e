"""Orders that left a venue before they were sent to it: a report of that venue on one contradicts the proof.

Reads the events of an order; writes nothing.
"""

from switchyard.domain.ids import OrderId, VenueName
from switchyard.domain.journal.lines import data_of, decode_order_fact
from switchyard.ports.journal import PAGE_MAX
from switchyard.ports.queries import Queries

# Reports on orders of other venues come only where two names lead to one broker; most orders have several reports.
REMEMBERED_MAX = 1_000


class LeftOrders:
    """Which orders left one venue."""

    def __init__(self, venue: VenueName, queries: Queries) -> None:
        self._venue = venue
        self._queries = queries
        self._known: dict[OrderId, bool] = {}

    async def has(self, order_id: OrderId) -> bool:
        """Whether the order was rerouted away from the venue."""
        if order_id not in self._known:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            events = await self._queries.events_after(0, order_id=order_id, limit=PAGE_MAX)
            moves = [decode_order_fact(data_of(event)).reroute for event in events if event.type == "OrderRerouted"]
            self._known[order_id] = any(move is not None and move.from_venue == self._venue for move in moves)
        return self._known[order_id]
