"""Best execution: which venue is ranked first, and why."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.domain.ids import VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.routing import Candidate, Wanted, preferred, ranked
from switchyard.domain.orders.order import Side

TICK = Decimal("0.001")


def wanted(side: Side = "BUY", qty: int = 10) -> Wanted:
    return Wanted(side, Decimal(qty), TICK)


def a_venue(name: str, bid: str | None = "150.000", ask: str = "150.010", **changes: Any) -> Candidate:
    sizes: dict[str, Any] = {size: Decimal(changes.pop(size)) for size in ("bid_size", "ask_size") if size in changes}
    quote = None if bid is None else Quote(bid=Decimal(bid), ask=Decimal(ask), **sizes)
    if "fee_percent" in changes:
        changes["fee_percent"] = Decimal(changes["fee_percent"])
    return Candidate(venue=VenueName(name), quote=quote, **changes)


@pytest.mark.parametrize(
    ("side", "one", "two", "reason"),
    [
        ("BUY", {"ask": "150.009"}, {}, "better price with its fee than two"),
        ("SELL", {"bid": "150.001"}, {}, "better price with its fee than two"),
        # A cheaper quote with a fee that costs more than the difference.
        ("BUY", {}, {"ask": "150.005", "fee_percent": "0.01"}, "better price with its fee than two"),
        ("SELL", {}, {"bid": "150.005", "fee_percent": "0.01"}, "better price with its fee than two"),
        ("BUY", {"ask_size": 10}, {"ask_size": 9}, "displays more of the quantity than two"),
        ("BUY", {"ask_size": 10, "ask": "150.009"}, {"ask_size": 500}, "better price with its fee than two"),
        ("BUY", {}, {"ask_size": 9}, "displays more of the quantity than two"),
        ("BUY", {"reject_rate": 0.1}, {"reject_rate": 0.2}, "rejects fewer orders than two"),
        ("BUY", {}, {"ask": "150.000", "reject_rate": 0.5}, "does not reject most orders, unlike two"),
        ("BUY", {"latency_seconds": 0.01}, {"latency_seconds": 0.02}, "answers faster than two"),
        # Less than a tick decides only where nothing else does.
        ("BUY", {"ask": "150.0101"}, {"ask": "150.0102"}, "better price than two, by less than a tick"),
        ("BUY", {"ask": "150.0102"}, {"ask": "150.0101", "latency_seconds": 1}, "answers faster than two"),
        ("BUY", {}, {"bid": None}, "has a quote, unlike two"),
        ("BUY", {"bid": None}, {"ask": "1.000", "problem": "its breaker is open"}, "healthy, unlike two"),
        ("BUY", {}, {}, "as good as two, and before it in the route"),
    ],
)  # fmt: skip
def test_the_better_venue_is_first_and_says_why(
    side: Side, one: dict[str, Any], two: dict[str, Any], reason: str
) -> None:
    first, second = a_venue("one", **one), a_venue("two", **two)
    route = ranked(wanted(side), [first, second])
    assert [candidate.venue for candidate in route.candidates] == ["one", "two"]
    assert route.candidates[0].reason == reason
    if not reason.startswith("as good"):
        swapped = ranked(wanted(side), [second, first])
        assert swapped.candidates[0].venue == "one", "the order of the route decides only between equals"


def test_the_choice_shows_what_it_was_made_of() -> None:
    route = ranked(wanted(), [a_venue("one", fee_percent="0.1", ask_size=7, reject_rate=0.25, latency_seconds=0.0123)])
    [candidate] = route.candidates
    assert (candidate.effective_price, candidate.size) == (Decimal("150.16001"), Decimal(7))
    assert (candidate.reject_rate, candidate.latency_ms, candidate.reason) == (0.25, 12.3, "the only venue")


def test_a_route_by_preference_takes_the_first_healthy_venue() -> None:
    route = preferred([a_venue("one", problem="its breaker is open"), a_venue("two"), a_venue("three")])
    assert [candidate.venue for candidate in route.candidates] == ["two", "three", "one"]
    assert [candidate.healthy for candidate in route.candidates] == [True, True, False]
    assert route.candidates[-1].reason == "its breaker is open"


_rates = st.floats(0, 1)
_latencies = st.floats(0, 5)
_prices = st.decimals("99.9", "100.1", places=4)
_sizes = st.decimals("0", "20", places=1)


@st.composite
def candidates(draw: st.DrawFn, name: str) -> Candidate:
    bid = draw(_prices)
    quote = Quote(
        bid=bid, ask=bid + draw(st.decimals("0", "0.1", places=4)), bid_size=draw(_sizes), ask_size=draw(_sizes)
    )
    return Candidate(
        venue=VenueName(name),
        problem=draw(st.sampled_from([None, None, None, "down"])),
        quote=draw(st.sampled_from([quote, quote, None])),
        fee_percent=draw(st.decimals("0", "0.5", places=2)),
        reject_rate=draw(_rates),
        latency_seconds=draw(_latencies),
    )  # fmt: skip


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Candidate, Candidate]:
    """A venue, and one that is better in at least one measure and worse in none."""
    worse = draw(candidates("worse"))
    quote = worse.quote
    if quote is not None:
        gain, more = draw(st.decimals("0", "0.01", places=4)), draw(_sizes)
        assert quote.bid_size is not None and quote.ask_size is not None
        quote = Quote(
            bid=quote.bid + gain,
            ask=max(quote.ask - gain, Decimal("0.0001")),
            bid_size=quote.bid_size + more,
            ask_size=quote.ask_size + more,
        )
    better = Candidate(
        venue=VenueName("better"),
        problem=None if worse.problem is None else draw(st.sampled_from([None, "down"])),
        quote=quote if quote is not None else draw(st.sampled_from([None, Quote(bid=Decimal(1), ask=Decimal(1000))])),
        fee_percent=worse.fee_percent * draw(st.sampled_from([Decimal(0), Decimal("0.5"), Decimal(1)])),
        reject_rate=(worse.reject_rate or 0) * draw(st.floats(0, 1)),
        # Strictly better in this one, so the two are never equal.
        latency_seconds=(worse.latency_seconds or 0) * draw(st.floats(0, 0.5)) - 0.001,
    )
    return better, worse


@given(pairs(), st.sampled_from(["BUY", "SELL"]), st.lists(candidates("other"), max_size=3), st.booleans())
def test_a_strictly_better_venue_is_never_ranked_below(
    pair: tuple[Candidate, Candidate], side: Side, others: list[Candidate], swaps: bool
) -> None:
    better, worse = pair
    field = [worse, *others, better] if swaps else [better, *others, worse]
    order = [candidate.venue for candidate in ranked(wanted(side), field).candidates]
    assert order.index(VenueName("better")) < order.index(VenueName("worse"))
    assert sorted(order) == sorted(candidate.venue for candidate in field)
