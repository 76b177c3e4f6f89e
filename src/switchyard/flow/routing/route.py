"""Where an order goes, and whether it would get there in time."""

from switchyard.domain.orders import OrderRequest
from switchyard.domain.routing import Destination, Router
from switchyard.flow.routing.forecast import Forecast
from switchyard.ports.quotes import Quotes


class Routes:
    """The way to the venue of a symbol."""

    def __init__(self, router: Router, quotes: Quotes, forecast: Forecast) -> None:
        self._router = router
        self._quotes = quotes
        self._forecast = forecast

    def open_way(self, request: OrderRequest) -> Destination:
        """The order's venue and its market; raises QueueDelayed where the order would leave after its deadline."""
        venue = self._router.venue_for(request.symbol)
        if self._forecast.is_too_slow(venue, request.time_in_force):
            raise self._forecast.rejection(venue)
        return Destination(venue, self._quotes.quote(venue, request.symbol))
