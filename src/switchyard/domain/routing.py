"""Routing: the venue of a symbol."""

from collections.abc import Mapping

import msgspec

from switchyard.domain.facts import Quote
from switchyard.domain.ids import VenueName


class Router:
    """Routes by symbol; the venue is stored with the order, so that a cancel goes to the same venue."""

    def __init__(self, default: VenueName, routes: Mapping[str, VenueName]) -> None:
        self._default = default
        self._routes = dict(routes)

    def venue_for(self, symbol: str) -> VenueName:
        """The symbol's venue, or the default venue."""
        return self._routes.get(symbol, self._default)


class Destination(msgspec.Struct, frozen=True):
    """The venue of an order, and its market when the order arrived, where known."""

    venue: VenueName
    quote: Quote | None
