"""The market of the paper exchange: a price that moves by a seed, or the quotes of another venue."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.values import EXACT, canonical
from switchyard.ports.clock import Clock
from switchyard.ports.quotes import TimedQuote

# Slow enough for a person to follow; the octave with the longest period then turns about twice a day.
STEP = timedelta(milliseconds=200)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OCTAVES = 10
_HEIGHT = 1 << 15
# The noise moves a price by at most 5 % of its level, so a price never approaches zero.
_SWING = 20 * _HEIGHT << _OCTAVES
# The half spread is the price divided by this number: about one pip on the currency majors.
_HALF_SPREAD = 20_000
# Only quotes of the current step are useful, so a full table is cleared.
_SYMBOLS_MAX = 10_000

# Realistic levels for well-known symbols; other symbols are between 1,000 and 10,000 ticks.
_LEVELS = {
    "USDJPY": Decimal("150"),
    "EURJPY": Decimal("165"),
    "GBPJPY": Decimal("190"),
    "AUDJPY": Decimal("98"),
    "EURUSD": Decimal("1.1"),
    "GBPUSD": Decimal("1.27"),
    "AUDUSD": Decimal("0.65"),
    "USDCHF": Decimal("0.88"),
    "USDCAD": Decimal("1.37"),
    "NZDUSD": Decimal("0.6"),
    "BTC": Decimal("60000"),
    "ETH": Decimal("3000"),
    "XRP": Decimal("0.6"),
    "AAPL": Decimal("180"),
    "MSFT": Decimal("400"),
}
_LEVEL_TICKS_MIN = 1_000
_LEVEL_TICKS_MAX = 10_000


def market_step(now: datetime) -> int:
    """The number of the step at this time; a market looks at its prices once in a step."""
    return int(now.timestamp() / STEP.total_seconds())


QuoteOf = Callable[[str, datetime], Quote | None]
"""The market of a symbol at a time; None: there is none now, so nothing is filled."""


class Market:
    """Computes quotes for any symbol."""

    def __init__(self, catalogue: Catalogue, seed: int = 0) -> None:
        self._catalogue = catalogue
        self._seed = seed
        self._quotes: dict[str, tuple[int, Quote]] = {}

    def quote(self, symbol: str, now: datetime) -> Quote:
        """Bid and ask on the instrument's tick; they change only between steps."""
        step = market_step(now)
        cached = self._quotes.get(symbol)
        if cached is not None and cached[0] == step:
            return cached[1]
        quote = self._walk(symbol, step)
        if len(self._quotes) >= _SYMBOLS_MAX:
            self._quotes.clear()
        self._quotes[symbol] = (step, quote)
        return quote

    def _walk(self, symbol: str, step: int) -> Quote:
        tick = self._catalogue.find(symbol).tick
        key = int.from_bytes(hashlib.sha256(f"{self._seed}:{symbol}".encode()).digest()[:8], "big")
        level = _level_ticks(symbol, tick, key)
        middle = level + level * _noise(key, step) // _SWING
        half_spread = max(1, middle // _HALF_SPREAD)
        at = _EPOCH + step * STEP
        return Quote(bid=_price(middle - half_spread, tick), ask=_price(middle + half_spread, tick), at=at)


def _level_ticks(symbol: str, tick: Decimal, key: int) -> int:
    level = _LEVELS.get(symbol)
    if level is None:
        return _LEVEL_TICKS_MIN + key % (_LEVEL_TICKS_MAX - _LEVEL_TICKS_MIN)
    return max(_LEVEL_TICKS_MIN, int(level / tick))


def _price(ticks: int, tick: Decimal) -> Decimal:
    return canonical(EXACT.multiply(Decimal(ticks), tick))


def _noise(key: int, step: int) -> int:
    total = 0
    for octave in range(_OCTAVES):
        # Linear interpolation between two random points, one period apart.
        shift = 2 * octave
        point = step >> shift
        offset = step - (point << shift)
        before, after = _height(key, octave, point), _height(key, octave, point + 1)
        total += (((before << shift) + (after - before) * offset) << octave) >> shift
    return total


def _height(key: int, octave: int, point: int) -> int:
    """A pseudo-random number within ±32,768 (the finaliser of splitmix64)."""
    mixed = (key + octave * 0xD1342543DE82EF95 + point * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (mixed >> 40 & 0xFFFF) - _HEIGHT


class PaperQuotes:
    """ports.quotes.QuoteSource of a paper exchange with the same catalogue, clock and seed."""

    def __init__(self, catalogue: Catalogue, clock: Clock, seed: int = 0) -> None:
        self._market = Market(catalogue, seed)
        self._clock = clock

    def current(self, symbol: str) -> TimedQuote:
        """Return the market of this moment."""
        return TimedQuote(self._market.quote(symbol, self._clock.now()), self._clock.monotonic())

    async def ask(self, symbol: str) -> TimedQuote:
        """Return the same."""
        return self.current(symbol)
