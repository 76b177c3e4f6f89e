"""The paper exchange's market: quotes computed from seed, symbol and time, without stored state."""

from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.adapters.venues.paper import market as market_module
from switchyard.adapters.venues.paper.market import STEP, Market
from switchyard.domain.market.instruments import DEFAULT_INSTRUMENTS, Catalogue, Instrument
from tests.support.venue_orders import MOMENT

DAY = timedelta(days=1)
naive = MOMENT.replace(tzinfo=None)


@given(
    seed=st.integers(0, 2**64),
    symbol=st.text(min_size=1, max_size=64),
    at=st.datetimes(naive - 9_000 * DAY, naive + 9_000 * DAY),
    tick=st.sampled_from([Decimal(1), Decimal("0.01"), Decimal("0.00000001"), Decimal("0.25"), Decimal(1_000)]),
)
def test_a_quote_is_positive_on_the_tick_and_has_a_spread(seed: int, symbol: str, at: datetime, tick: Decimal) -> None:
    catalogue = Catalogue({symbol: Instrument(symbol=symbol, tick=tick)})
    quote = Market(catalogue, seed).quote(symbol, at.replace(tzinfo=MOMENT.tzinfo))
    assert 0 < quote.bid < quote.ask
    assert quote.bid % tick == quote.ask % tick == 0


def test_the_same_seed_gives_the_same_quotes_at_any_time() -> None:
    used, fresh = Market(Catalogue(), 7), Market(Catalogue(), 7)
    for days in range(100):
        used.quote("USDJPY", MOMENT + days * DAY)
    assert used.quote("USDJPY", MOMENT) == fresh.quote("USDJPY", MOMENT)
    assert used.quote("USDJPY", MOMENT) != Market(Catalogue(), 8).quote("USDJPY", MOMENT)


@pytest.mark.parametrize(("symbol", "level"), [("USDJPY", "150"), ("EURUSD", "1.1"), ("BTC", "60000")])
def test_well_known_symbols_stay_near_their_level(symbol: str, level: str) -> None:
    market = Market(Catalogue(), 1)
    bids = [market.quote(symbol, MOMENT + hours * timedelta(hours=1)).bid for hours in range(500)]
    assert all(abs(bid / Decimal(level) - 1) < Decimal("0.051") for bid in bids)


def test_the_walk_moves_in_small_steps() -> None:
    market = Market(Catalogue(), 1)
    bids = [market.quote("EURUSD", MOMENT + step * STEP).bid for step in range(1_000)]
    moves = [abs(after - before) for before, after in pairwise(bids)]
    assert max(moves) < Decimal("0.001")
    assert len(set(bids)) > 100


def test_every_listed_instrument_has_a_narrow_spread() -> None:
    market = Market(Catalogue(), 1)
    for symbol in DEFAULT_INSTRUMENTS:
        quote = market.quote(symbol, MOMENT)
        assert (quote.ask - quote.bid) / quote.bid < Decimal("0.0002")


def test_the_quote_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(market_module, "_SYMBOLS_MAX", 10)
    market = Market(Catalogue(), 1)
    first = market.quote("symbol-0", MOMENT)
    for number in range(100):
        market.quote(f"symbol-{number}", MOMENT)
    assert len(market._quotes) <= 10
    assert market.quote("symbol-0", MOMENT) == first
