"""`GET /quotes/{symbol}`, `GET /instruments` and `GET /venues`: the market, the catalogue and the venues.

Reads the quote board, the catalogue and the health of the venues; calls no venue and writes nothing.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from switchyard.domain.errors import InvalidField, NoQuote
from switchyard.domain.ids import VenueName
from switchyard.domain.market.health import VenueState
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.market.quotes import MarketQuote, as_listed
from switchyard.domain.market.routing import Router
from switchyard.entrypoints.http.errors import json_response, starlette_response
from switchyard.entrypoints.http.queries import name_cursor, only, whole_number
from switchyard.entrypoints.http.transport.auth import TokenVerifier, authorization_header
from switchyard.flow.quotes import QuoteBoard

INSTRUMENTS_PAGE_MAX = 500


class MarketRoutes:
    """The routes; every account sees the same, and operators see why a venue gets no orders."""

    def __init__(
        self,
        *,
        quotes: QuoteBoard,
        catalogue: Catalogue,
        router: Router,
        venues: Collection[VenueName],
        venue_states: Callable[[bool], list[VenueState]],
        tokens: TokenVerifier,
    ) -> None:
        self._quotes = quotes
        self._catalogue = catalogue
        self._router = router
        self._venues = venues
        self._venue_states = venue_states
        self._tokens = tokens
        self._symbols = sorted(catalogue.symbols)
        self.routes = [
            Route("/quotes/{symbol}", self._show_quote),
            Route("/instruments", self._list_instruments),
            Route("/venues", self._list_venues),
        ]

    async def _show_quote(self, request: Request) -> Response:
        self._tokens.verify(authorization_header(request.scope))
        only(request.query_params, ("venue",))
        # A slash in the symbol arrives encoded, so that it cannot lead to another route.
        symbol = self._catalogue.tradable(unquote(request.path_params["symbol"]), "symbol").symbol
        venue = VenueName(request.query_params.get("venue") or self._router.venue_for(symbol))
        if venue not in self._venues:
            raise InvalidField("venue", f"must be one of {', '.join(self._venues)}")
        found = await self._quotes.timed(venue, symbol)
        if found is None:
            raise NoQuote(venue, symbol)
        quote = found.quote
        assert quote.at is not None, "every source dates its quotes"
        shown = MarketQuote(
            symbol=symbol,
            venue=venue,
            bid=quote.bid,
            ask=quote.ask,
            at=quote.at,
            age_seconds=round(self._quotes.age_seconds(found), 3),
        )
        return starlette_response(json_response(200, shown))

    async def _list_instruments(self, request: Request) -> Response:
        self._tokens.verify(authorization_header(request.scope))
        query = request.query_params
        only(query, ("limit", "cursor"))
        limit = whole_number(query, "limit", INSTRUMENTS_PAGE_MAX, 1, INSTRUMENTS_PAGE_MAX)
        start = bisect_right(self._symbols, name_cursor(query))
        page = self._symbols[start : start + limit]
        body = {
            "instruments": [as_listed(self._catalogue.find(symbol), self._router.venue_for(symbol)) for symbol in page],
            "nextCursor": f"after:{page[-1]}" if start + limit < len(self._symbols) else None,
        }
        return starlette_response(json_response(200, body))

    async def _list_venues(self, request: Request) -> Response:
        grant = self._tokens.grant(authorization_header(request.scope))
        only(request.query_params, ())
        return starlette_response(json_response(200, {"venues": self._venue_states(grant.is_operator)}))
