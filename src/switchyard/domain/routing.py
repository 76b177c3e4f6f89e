"""Which venue an order goes to."""

from collections.abc import Mapping

import msgspec

from switchyard.domain.events import Quote
from switchyard.domain.ids import VenueName


class Router:
    """Routes by symbol; the choice is stored with the order, so a cancel goes where the order went."""

    def __init__(self, default: VenueName, routes: Mapping[str, VenueName]) -> None:
        self._default = default
        self._routes = dict(routes)

    def venue_for(self, symbol: str) -> VenueName:
        """The symbol's venue, else the default one."""
        return self._routes.get(symbol, self._default)


class Destination(msgspec.Struct, frozen=True):
    """Where an order goes, and the market there when it arrived."""

    venue: VenueName
    quote: Quote | None
