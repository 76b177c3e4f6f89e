"""Choose an order's venue. Reads the quotes that this process has; writes nothing."""

from switchyard.domain.orders import OrderRequest
from switchyard.domain.routing import Destination
from switchyard.flow.health.choice import VenueChoice
from switchyard.ports.quotes import Quotes


class Routes:
    """Finds the destination of an order."""

    def __init__(self, choice: VenueChoice, quotes: Quotes) -> None:
        self._choice = choice
        self._quotes = quotes

    def route_for(self, order: OrderRequest) -> Destination:
        """Return the order's venue and its quote, and how the venue was chosen where there was a choice."""
        route = self._choice.route_of(order.symbol)
        venue, chosen = route.venues[0], None
        if len(route.venues) > 1:
            chosen = self._choice.among(order, route)
            venue = chosen.candidates[0].venue
            if not route.by_quality and venue == route.venues[0]:
                chosen = None  # nothing to explain: the preferred venue is healthy
        return Destination(venue, self._quotes.quote(venue, order.symbol), chosen)
