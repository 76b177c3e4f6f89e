"""Routing: the venues of a symbol, in which order they are tried."""

from collections.abc import Mapping

import msgspec

from switchyard.domain.ids import VenueName

# The word for a route by quality, in settings; no venue may have this name.
BEST = "best"


class Route(msgspec.Struct, frozen=True):
    """The venues of a symbol: the first is preferred, or the best one is chosen for each order."""

    venues: tuple[VenueName, ...]
    by_quality: bool = False


class Router:
    """Routes by symbol; the venue is stored with the order, so that a cancel goes to the same venue."""

    def __init__(self, default: Route, routes: Mapping[str, Route]) -> None:
        self._default = default
        self._routes = dict(routes)

    def route_for(self, symbol: str) -> Route:
        """The symbol's route, or the default route."""
        return self._routes.get(symbol, self._default)

    def venue_for(self, symbol: str) -> VenueName:
        """The venue of the symbol: of several, the preferred one."""
        return self.route_for(symbol).venues[0]

    def may_leave(self, venue: VenueName) -> bool:
        """Whether the route of some symbol names the venue and another one."""
        routes = (self._default, *self._routes.values())
        return any(venue in route.venues and len(route.venues) > 1 for route in routes)
