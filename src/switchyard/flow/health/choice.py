"""Chooses among the venues of a route: the best or the preferred one that is healthy, with the reasons.

Reads the quotes and the health that this process has, and waits for nothing; writes nothing.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal

from switchyard.domain.ids import VenueName
from switchyard.domain.journal.facts import RouteFact
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.market.routing import Candidate, Route, Router, Wanted, preferred, ranked
from switchyard.domain.orders.order import Order, OrderKinds, OrderRequest, lacking
from switchyard.flow.health.board import HealthBoard
from switchyard.ports.quotes import Quotes

Problem = Callable[[VenueName], str | None]
"""Why an order should not go to a venue; none where it may."""


class VenueChoice:
    """Chooses the venue of a new order, and of one that leaves its venue."""

    def __init__(
        self,
        router: Router,
        quotes: Quotes,
        *,
        catalogue: Catalogue,
        health: HealthBoard,
        fees_percent: Mapping[VenueName, Decimal | None],
        kinds: Mapping[VenueName, OrderKinds],
    ) -> None:
        """`fees_percent`: of each venue, none where the instrument's own applies; `kinds`: the orders that it takes."""
        self._router = router
        self._quotes = quotes
        self._catalogue = catalogue
        self._health = health
        self._fees_percent = fees_percent
        self._kinds = kinds

    def may_leave(self, venue: VenueName) -> bool:
        """Whether the route of some symbol names the venue and another one."""
        return self._router.may_leave(venue)

    def route_of(self, symbol: str) -> Route:
        """The symbol's route."""
        return self._router.route_for(symbol)

    def among(self, order: OrderRequest | Order, route: Route, problem: Problem | None = None) -> RouteFact:
        """The venues of the route, the best first."""

        def problem_of(venue: VenueName) -> str | None:
            return self._lacking(venue, order) or (self._health.reason if problem is None else problem)(venue)

        if not route.by_quality:
            return preferred([Candidate(venue=venue, problem=problem_of(venue)) for venue in route.venues])
        instrument = self._catalogue.find(order.symbol)
        candidates = [
            self._candidate(venue, order.symbol, instrument.fee_percent, problem_of(venue)) for venue in route.venues
        ]
        return ranked(Wanted(order.side, order.qty, instrument.tick), candidates)

    def instead_of(self, order: Order, problem: Problem) -> VenueName | None:
        """The venue to which an order may go from its present one; none where no other can take it."""
        route = self.route_of(order.symbol)
        others = tuple(
            venue
            for venue in route.venues
            if venue != order.venue and problem(venue) is None and self._lacking(venue, order) is None
        )
        if not others:
            return None
        return self.among(order, Route(others, by_quality=route.by_quality), problem).candidates[0].venue

    def _lacking(self, venue: VenueName, order: OrderRequest | Order) -> str | None:
        """What the venue lacks for an order of this kind, in words; such an order must not go there."""
        kinds = self._kinds.get(venue)
        found = None if kinds is None else lacking(kinds, order)
        return None if found is None else f"it has no {found.value}"

    def _candidate(self, venue: VenueName, symbol: str, fee_percent: Decimal, problem: str | None) -> Candidate:
        record, own_fee = self._health.record(venue), self._fees_percent.get(venue)
        return Candidate(
            venue=venue,
            problem=problem,
            quote=self._quotes.quote(venue, symbol),
            fee_percent=fee_percent if own_fee is None else own_fee,
            reject_rate=None if record is None else record.reject_rate,
            latency_seconds=None if record is None else record.latency_seconds,
        )
