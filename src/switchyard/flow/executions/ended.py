"""Finds orders that have ended here and that their venue still shows open, for example after a wrong verdict.

Reads orders from the journal; writes nothing.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from switchyard.domain.ids import OrderId, VenueClientOrderId, VenueName
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.reports import is_storable
from switchyard.ports.journal import Journal

PAGE = 500
# A venue's list of open orders may lag behind its reports by this time.
LAG = timedelta(seconds=10)


async def ended_orders(
    journal: Journal, venue: VenueName, shown: Sequence[VenueClientOrderId], asked_at: datetime
) -> list[OrderId]:
    """Those of the orders that a venue showed open at `asked_at` that had ended here well before."""
    ended = []
    for first in range(0, len(shown), PAGE):
        ids = [client_id for client_id in shown[first : first + PAGE] if is_storable(client_id)]
        for state in (await journal.load_by_client_order_id(ids)).values():
            order = state.order
            if order.venue == venue and is_final(order.status) and order.updated_at <= asked_at - LAG:
                ended.append(order.order_id)
    return ended
