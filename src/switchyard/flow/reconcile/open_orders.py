"""Compares the orders that are open at a venue with those that are open here. Reads both; writes nothing."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.orders.amends import current_id
from switchyard.domain.orders.order import Order
from switchyard.domain.reconcile.breaks import Difference
from switchyard.domain.reconcile.matching import OpenThere, open_order_difference
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Queries
from switchyard.ports.venue import VenueStatement

PAGE: Final = 500


async def compare_open_orders(
    venue: VenueStatement, journal: Journal, queries: Queries, quiet_since: datetime
) -> list[tuple[Difference, bool]]:
    """The differences, each with whether its order was active just now; raises VenueUnavailable."""
    shown: dict[VenueClientOrderId, OpenThere] = {}
    times: Counter[VenueClientOrderId] = Counter()
    async for page in venue.open_orders():
        for order in page:
            shown[order.venue_client_order_id] = order.qty, order.filled_qty, order.symbol
            times[order.venue_client_order_id] += 1
    found: list[tuple[Difference, bool]] = []
    listed = list(shown)
    for start in range(0, len(listed), PAGE):
        ids = listed[start : start + PAGE]
        # Ours after theirs: a change since then shows as activity.
        states = await journal.load_by_client_order_id(ids)
        for client_id in ids:
            state = states.get(client_id)
            ours = None if state is None else state.order
            one = open_order_difference(venue.name, client_id, ours, shown[client_id], times=times[client_id])
            if one is not None:
                found.append((one, ours is not None and ours.updated_at > quiet_since))
    after = None
    while orders := await queries.open_orders(venue.name, after=after, limit=PAGE):
        found += _absent(venue, orders, shown, quiet_since)
        after = orders[-1].order_id
    return found


def _absent(
    venue: VenueStatement, orders: list[Order], shown: dict[VenueClientOrderId, OpenThere], quiet_since: datetime
) -> Iterator[tuple[Difference, bool]]:
    for order in orders:
        # A cancel may be requested before the order itself is sent.
        if current_id(order) in shown or order.venue_client_order_id in shown or order.venue_order_id is None:
            continue
        one = open_order_difference(venue.name, current_id(order), order, None)
        if one is not None:
            yield one, order.updated_at > quiet_since
