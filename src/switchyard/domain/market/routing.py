"""Which venue an order goes to: the route of its symbol, or the best of its venues by cost and quality. Pure."""

from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from types import MappingProxyType
from typing import Any, Final

import msgspec

from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.journal.facts import CandidateFact, Quote, RouteFact
from switchyard.domain.orders.order import Side
from switchyard.domain.values import EXACT, ROUNDED, ZERO, canonical

# A venue that rejects so many of its orders is used only if no other has a quote: its price is not to be had.
UNRELIABLE_RATE: Final = 0.5


class Wanted(msgspec.Struct, frozen=True):
    """What decides about the venues of an order."""

    side: Side
    qty: Decimal
    tick: Decimal


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A venue, as far as this process knows it."""

    venue: VenueName
    problem: str | None = None
    """Why no order should go to it; none while it is healthy."""
    is_barred: bool = False
    """Whether an order to it would be rejected; to one with another problem it would wait."""
    quote: Quote | None = None
    """None without a quote, or with a stale one."""
    fee_percent: Decimal = ZERO
    reject_rate: float | None = None
    """The share of orders that it rejected lately; none if that is not known."""
    latency_seconds: float | None = None
    """How long it took to answer lately; none if that is not known."""


def effective_price(wanted: Wanted, candidate: Candidate) -> Decimal | None:
    """What a unit costs (BUY) or brings (SELL) with the fee; none without a quote."""
    if candidate.quote is None:
        return None
    is_buy = wanted.side == "BUY"
    price = candidate.quote.ask if is_buy else candidate.quote.bid
    fee = EXACT.multiply(price, candidate.fee_percent).scaleb(-2, EXACT)
    return canonical(EXACT.add(price, fee) if is_buy else EXACT.subtract(price, fee))


def displayed_size(wanted: Wanted, candidate: Candidate) -> Decimal | None:
    """The quantity that the venue shows at its price; none if it shows none."""
    if candidate.quote is None:
        return None
    return candidate.quote.ask_size if wanted.side == "BUY" else candidate.quote.bid_size


def ranked(wanted: Wanted, candidates: Sequence[Candidate]) -> RouteFact:
    """The candidates with the best first; what is equal keeps its order.

    Each measure decides only where all before it are equal, so a venue that is better in one of them and worse in none
    is never placed below: health, a quote, reliability, price in ticks, displayed size, rejects, latency, exact price.
    """
    order = sorted(candidates, key=lambda candidate: [measure(wanted, candidate) for measure, *_ in _MEASURES])
    facts = []
    for place, candidate in enumerate(order):
        other = order[0] if place else (order[1] if len(order) > 1 else None)
        facts.append(_fact(wanted, candidate, _reason(wanted, candidate, other, is_first=not place)))
    return RouteFact(by="quality", candidates=tuple(facts))


def preferred(candidates: Sequence[Candidate]) -> RouteFact:
    """The candidates in their own order, those with a problem last."""
    order = sorted(candidates, key=lambda candidate: (candidate.is_barred, candidate.problem is not None))
    facts = []
    for place, candidate in enumerate(order):
        text = "later in the route" if place else "the first healthy venue of the route"
        reason = candidate.problem or text
        facts.append(CandidateFact(venue=candidate.venue, healthy=candidate.problem is None, reason=reason))
    return RouteFact(by="preference", candidates=tuple(facts))


def _price_in_ticks(wanted: Wanted, candidate: Candidate) -> Decimal:
    """The effective price as a cost, rounded against the account to whole ticks: less than a tick decides nothing."""
    price = effective_price(wanted, candidate)
    if price is None:
        return ZERO
    is_buy = wanted.side == "BUY"
    rounding = ROUND_CEILING if is_buy else ROUND_FLOOR
    ticks = ROUNDED.divide(price, wanted.tick).to_integral_value(rounding=rounding)
    return ticks if is_buy else -ticks


def _exact_price(wanted: Wanted, candidate: Candidate) -> Decimal:
    price = effective_price(wanted, candidate) or ZERO
    return price if wanted.side == "BUY" else -price


def _shortage(wanted: Wanted, candidate: Candidate) -> Decimal:
    """How much of the quantity is not displayed; of a venue that shows no size, nothing is missing."""
    size = displayed_size(wanted, candidate)
    return ZERO if size is None else max(wanted.qty - size, ZERO)


_Measure = Callable[[Wanted, Candidate], Any]
# Each measure, the smaller the better, with the words for the better and for the worse of two venues.
_MEASURES: Final[tuple[tuple[_Measure, str, str], ...]] = (
    (lambda _, candidate: candidate.is_barred, "takes orders, unlike {}", "takes no orders"),
    (lambda _, candidate: candidate.problem is not None, "healthy, unlike {}", "not healthy"),
    (lambda _, candidate: candidate.quote is None, "has a quote, unlike {}", "has no fresh quote"),
    (
        lambda _, candidate: (candidate.reject_rate or 0.0) >= UNRELIABLE_RATE,
        "does not reject most orders, unlike {}",
        "rejects most orders",
    ),
    (_price_in_ticks, "better price with its fee than {}", "worse price with its fee than {}"),
    (_shortage, "displays more of the quantity than {}", "displays less of the quantity than {}"),
    (lambda _, candidate: candidate.reject_rate or 0.0, "rejects fewer orders than {}", "rejects more orders than {}"),
    (lambda _, candidate: candidate.latency_seconds or 0.0, "answers faster than {}", "answers slower than {}"),
    (_exact_price, "better price than {}, by less than a tick", "worse price than {}, by less than a tick"),
)


def _reason(wanted: Wanted, candidate: Candidate, other: Candidate | None, *, is_first: bool) -> str:
    """What decided between the candidate and the other one: the best, or for the best the next."""
    if candidate.problem is not None:
        return candidate.problem
    if other is None:
        return "the only venue"
    for measure, better, worse in _MEASURES:
        if measure(wanted, candidate) != measure(wanted, other):
            return (better if is_first else worse).format(other.venue)
    return f"as good as {other.venue}, and {'before' if is_first else 'after'} it in the route"


def _fact(wanted: Wanted, candidate: Candidate, reason: str) -> CandidateFact:
    latency, rate = candidate.latency_seconds, candidate.reject_rate
    return CandidateFact(
        venue=candidate.venue,
        healthy=candidate.problem is None,
        effective_price=effective_price(wanted, candidate),
        fee_percent=candidate.fee_percent or ZERO,
        size=displayed_size(wanted, candidate),
        reject_rate=None if rate is None else round(rate, 3),
        latency_ms=None if latency is None else round(latency * 1000, 1),
        reason=reason,
    )


# The word for a route by quality, in settings; no venue may have this name.
BEST = "best"


class Route(msgspec.Struct, frozen=True):
    """The venues of a symbol: the first is preferred, or the best one is chosen for each order."""

    venues: tuple[VenueName, ...]
    by_quality: bool = False


AccountRoutes = Mapping[tuple[AccountId, str | None], Route]
"""Routes by account and symbol; without a symbol, of all of the account's orders that have no route of their own."""


class Router:
    """Routes by account and symbol; the venue is stored with the order, so that a cancel goes to the same venue."""

    def __init__(
        self, default: Route, routes: Mapping[str, Route], account_routes: AccountRoutes = MappingProxyType({})
    ) -> None:
        self._default = default
        self._routes = dict(routes)
        self._account_routes = dict(account_routes)

    def route_for(self, symbol: str, account: AccountId | None = None) -> Route:
        """The account's route if it has one, else the symbol's, else the default route."""
        if self._account_routes and account is not None:
            for key in ((account, symbol), (account, None)):
                if key in self._account_routes:
                    return self._account_routes[key]
        return self._routes.get(symbol, self._default)

    def venues_of(self, symbol: str) -> Sequence[VenueName]:
        """Every venue to which some account's order in the symbol may go."""
        if not self._account_routes:
            return self.route_for(symbol).venues
        routes = [self.route_for(symbol), *(self.route_for(symbol, account) for account, _ in self._account_routes)]
        return tuple(dict.fromkeys([venue for route in routes for venue in route.venues]))

    def is_routed(self, venue: VenueName) -> bool:
        """Whether some order may go to the venue."""
        routes = (self._default, *self._routes.values(), *self._account_routes.values())
        return any(venue in route.venues for route in routes)

    def venue_for(self, symbol: str) -> VenueName:
        """The venue of the symbol: of several, the preferred one."""
        return self.route_for(symbol).venues[0]

    def may_leave(self, venue: VenueName) -> bool:
        """Whether the route of some symbol names the venue and another one."""
        routes = (self._default, *self._routes.values(), *self._account_routes.values())
        return any(venue in route.venues and len(route.venues) > 1 for route in routes)
