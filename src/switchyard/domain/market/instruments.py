"""The instrument catalogue: symbols with their lots, steps, ticks, order sizes, fees, collars and currencies."""

import re
from collections.abc import Collection, Mapping
from decimal import Decimal
from difflib import get_close_matches
from typing import Literal

import msgspec

from switchyard.domain.errors import InvalidField, UnknownSymbol
from switchyard.domain.values import ONE, SYMBOL, SYMBOL_LENGTH_MAX, ZERO, is_multiple, plain

InstrumentKind = Literal["fx", "crypto", "equity", "future", "other"]


class Instrument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the catalogue."""

    symbol: str
    kind: InstrumentKind = "other"
    base: str | None = None
    quote: str | None = None
    settle: str | None = None
    """The currency in which amounts are counted; none: that of the price (`quote`)."""
    multiplier: Decimal = ONE
    """The notional is quantity times price times this."""
    lot: Decimal = ONE
    """Units in one lot; quantities on `/orders` are units."""
    step: Decimal = ONE
    """Quantities are whole multiples of this."""
    tick: Decimal = ONE
    """Prices are whole multiples of this."""
    min_qty: Decimal | None = None
    """The smallest order, in units (the minimum lot); none: one step."""
    max_qty: Decimal | None = None
    """The largest order, in units; none: no limit."""
    fee_percent: Decimal = ZERO
    """The expected fee of a fill, in percent of its notional."""
    collar_percent: Decimal | None = None
    """How far from the market a price may be, in percent of the reference price; none: no limit."""

    @property
    def settlement(self) -> str:
        """The currency in which amounts of this instrument are counted; empty where the catalogue names none."""
        return self.settle or self.quote or ""


def _fx(pair: str, tick: str) -> Instrument:
    base, quote = pair[:3], pair[3:]
    return Instrument(
        symbol=pair,
        kind="fx",
        base=base,
        quote=quote,
        settle=quote,
        lot=Decimal(100_000),
        min_qty=Decimal(1_000),
        tick=Decimal(tick),
        max_qty=Decimal(1_000_000_000),
    )


def _crypto(symbol: str, step: str, tick: str, max_qty: int) -> Instrument:
    return Instrument(
        symbol=symbol,
        kind="crypto",
        base=symbol,
        quote="USD",
        settle="USD",
        step=Decimal(step),
        tick=Decimal(tick),
        max_qty=Decimal(max_qty),
    )


def _equity(symbol: str) -> Instrument:
    return Instrument(
        symbol=symbol,
        kind="equity",
        base=symbol,
        quote="USD",
        settle="USD",
        tick=Decimal("0.01"),
        max_qty=Decimal(10_000_000),
    )


# The largest sizes are far above any sensible order: they stop a slipped finger, not a trader.
# FX majors with their usual ticks and the usual smallest order of retail brokers, 0.01 lot. Their step stays one unit:
# a position that part fills have left must be closable. Then the symbols of the specifications' examples; other
# instruments come from the `instruments` section of the settings.
DEFAULT_INSTRUMENTS: Mapping[str, Instrument] = {
    instrument.symbol: instrument
    for instrument in (
        _fx("USDJPY", "0.001"),
        _fx("EURJPY", "0.001"),
        _fx("GBPJPY", "0.001"),
        _fx("AUDJPY", "0.001"),
        _fx("EURUSD", "0.00001"),
        _fx("GBPUSD", "0.00001"),
        _fx("AUDUSD", "0.00001"),
        _fx("NZDUSD", "0.00001"),
        _fx("USDCHF", "0.00001"),
        _fx("USDCAD", "0.00001"),
        _crypto("BTC", "0.00000001", "0.01", 10_000),
        _crypto("ETH", "0.00000001", "0.01", 100_000),
        _crypto("XRP", "0.000001", "0.00001", 1_000_000_000),
        _equity("AAPL"),
        _equity("MSFT"),
    )
}
# A hint compares the symbol with every listed one; beyond this number it is found by its exact letters only.
_COMPARED_MAX = 500
_SEPARATORS = re.compile(r"[^A-Z0-9]")


class Catalogue:
    """The instruments of this installation; `allows_unlisted` lets other symbols trade in whole units and prices."""

    def __init__(
        self, listed: Mapping[str, Instrument] = DEFAULT_INSTRUMENTS, *, allows_unlisted: bool = False
    ) -> None:
        self._listed = dict(listed)
        self._allows_unlisted = allows_unlisted

    @property
    def symbols(self) -> Collection[str]:
        """The listed symbols."""
        return self._listed.keys()

    def listed(self, symbol: str) -> Instrument | None:
        """The listed instrument, or none."""
        return self._listed.get(symbol)

    def find(self, symbol: str) -> Instrument:
        """The listed instrument, or one with step 1 and tick 1, as the v1 contract has it for unlisted symbols."""
        return self._listed.get(symbol) or Instrument(symbol=symbol)

    def tradable(self, symbol: str, field: str, *, listed_only: bool = False) -> Instrument:
        """The instrument that an order may name; raises UnknownSymbol, or InvalidField for what is not a symbol."""
        instrument = self._listed.get(symbol)
        if instrument is not None:
            return instrument
        is_symbol = SYMBOL.fullmatch(symbol) is not None
        if is_symbol and self._allows_unlisted and not listed_only:
            return Instrument(symbol=symbol)
        suggestion = self._like(symbol)
        if suggestion is not None:
            raise UnknownSymbol(field, f"is not a listed instrument: did you mean {suggestion}?")
        if not is_symbol:
            raise InvalidField(field, f"must match {SYMBOL.pattern}")
        advice = "add it to the section `instruments` of the settings"
        if not listed_only:
            advice += ", or set SWITCHYARD_UNLISTED_SYMBOLS=allow"
        raise UnknownSymbol(field, f"is not a listed instrument: {advice}")

    def _like(self, symbol: str) -> str | None:
        """The listed symbol that was probably meant; none where no symbol is near."""
        if len(symbol) > SYMBOL_LENGTH_MAX or not symbol.isprintable():
            return None
        letters = _SEPARATORS.sub("", symbol.upper())
        if letters in self._listed:
            return letters
        if len(self._listed) > _COMPARED_MAX:
            return None
        return next(iter(get_close_matches(letters, self._listed, n=1, cutoff=0.8)), None)


def check_multiple(amount: Decimal, step: Decimal, field: str, instrument: Instrument) -> None:
    """Raise InvalidField for a quantity off the step or a price off the tick."""
    if not is_multiple(amount, step):
        raise InvalidField(field, f"must be a multiple of {plain(step)} for {instrument.symbol}")
