"""A market made of arithmetic: a random walk that is a function of seed, symbol and time.

The walk is not stepped but computed: noise of ever longer periods is added up, each four times as long and twice as
high as the one before, which moves like a random walk and stays within a bound. So nothing has to be kept: a restart
or a symbol nobody asked about for a year finds the price where the walk is by now. Integers only: prices are ticks.
"""

import hashlib
from datetime import datetime, timedelta
from decimal import Decimal

from switchyard.domain.events import Quote
from switchyard.domain.instruments import Catalogue
from switchyard.domain.money import EXACT, canonical

# As often as a person can follow; the noise with the longest period then turns about twice a day.
STEP = timedelta(milliseconds=200)
_OCTAVES = 10
_HEIGHT = 1 << 15
# The sum of all noises moves a price by at most a twentieth of its level, so it never comes near zero.
_SWING = 20 * _HEIGHT << _OCTAVES
# Half the spread is one part in this many of the price: about a pip on the currency majors.
_HALF_SPREAD = 20_000
# Only quotes of the current step are worth keeping, so a full table is simply begun again.
_SYMBOLS_MAX = 10_000

# Where people expect these; other symbols start between 1,000 and 10,000 ticks.
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
    "BTC": Decimal("60000"),
    "ETH": Decimal("3000"),
}
_LEVEL_TICKS_MIN = 1_000
_LEVEL_TICKS_MAX = 10_000


class Market:
    """Quotes for every symbol there is."""

    def __init__(self, catalogue: Catalogue, seed: int) -> None:
        self._catalogue = catalogue
        self._seed = seed
        self._quotes: dict[str, tuple[int, Quote]] = {}

    def step(self, now: datetime) -> int:
        """Which step of the walk the moment belongs to; quotes change between steps only."""
        return int(now.timestamp() / STEP.total_seconds())

    def quote(self, symbol: str, now: datetime) -> Quote:
        """Bid and ask on the instrument's tick."""
        step = self.step(now)
        kept = self._quotes.get(symbol)
        if kept is not None and kept[0] == step:
            return kept[1]
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
        return Quote(bid=_price(middle - half_spread, tick), ask=_price(middle + half_spread, tick))


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
        # Between two points, one period apart, the noise of an octave is a straight line.
        shift = 2 * octave
        point = step >> shift
        beyond = step - (point << shift)
        before, after = _height(key, octave, point), _height(key, octave, point + 1)
        total += (((before << shift) + (after - before) * beyond) << octave) >> shift
    return total


def _height(key: int, octave: int, point: int) -> int:
    """A number within ±32,768 that looks random (the finaliser of splitmix64)."""
    mixed = (key + octave * 0xD1342543DE82EF95 + point * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (mixed >> 40 & 0xFFFF) - _HEIGHT
