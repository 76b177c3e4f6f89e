"""Choose an order's venue and reject an order that would be sent too late.

Reads the queue forecast and the quotes that this process has; writes nothing.
"""

from switchyard.domain.orders import OrderRequest
from switchyard.domain.routing import Destination, Router
from switchyard.flow.routing.forecast import Forecast
from switchyard.ports.quotes import Quotes


class Routes:
    """Finds the destination of an order."""

    def __init__(self, router: Router, quotes: Quotes, forecast: Forecast) -> None:
        self._router = router
        self._quotes = quotes
        self._forecast = forecast

    def route_for(self, order: OrderRequest) -> Destination:
        """Return the order's venue and its quote; raises QueueDelayed where the order would be sent too late."""
        venue = self._router.venue_for(order.symbol)
        if self._forecast.is_too_slow(venue, order.time_in_force):
            raise self._forecast.rejection(venue)
        return Destination(venue, self._quotes.quote(venue, order.symbol))
