"""Choose an order's venue. Reads the quotes that this process has; writes nothing."""

from switchyard.domain.orders import OrderRequest
from switchyard.domain.routing import Destination, Router
from switchyard.ports.quotes import Quotes


class Routes:
    """Finds the destination of an order."""

    def __init__(self, router: Router, quotes: Quotes) -> None:
        self._router = router
        self._quotes = quotes

    def route_for(self, order: OrderRequest) -> Destination:
        """Return the order's venue and its quote."""
        venue = self._router.venue_for(order.symbol)
        return Destination(venue, self._quotes.quote(venue, order.symbol))
