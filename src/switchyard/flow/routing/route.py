"""Where an order goes, and whether it would get there in time."""

from switchyard.domain.orders import OrderRequest
from switchyard.domain.routing import Router
from switchyard.flow.intake.placing import Destination
from switchyard.flow.routing.forecast import Forecast
from switchyard.ports.venue import Quotes


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
            raise self._forecast.refusal(venue)
        return Destination(venue, self._quotes.quote(venue, request.symbol))
