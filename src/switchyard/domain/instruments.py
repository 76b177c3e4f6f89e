"""The instrument catalogue: symbols with their lots, quantity steps and price ticks."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Literal

import msgspec

from switchyard.domain.errors import InvalidField
from switchyard.domain.money import ONE, is_multiple, plain

InstrumentKind = Literal["fx", "crypto", "equity", "future", "other"]


class Instrument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the catalogue."""

    symbol: str
    kind: InstrumentKind = "other"
    base: str | None = None
    quote: str | None = None
    settle: str | None = None
    multiplier: Decimal = ONE
    lot: Decimal = ONE
    """Units in one lot; quantities on `/orders` are units."""
    step: Decimal = ONE
    """Quantities are whole multiples of this."""
    tick: Decimal = ONE
    """Prices are whole multiples of this."""
    collar: Decimal | None = None
    """How far from the market a price may be, as a ratio; none: no limit."""


def _fx(pair: str, tick: str) -> Instrument:
    base, quote = pair[:3], pair[3:]
    return Instrument(
        symbol=pair, kind="fx", base=base, quote=quote, settle=quote, lot=Decimal(100_000), tick=Decimal(tick)
    )


# FX majors with their usual ticks; other instruments come from the `instruments` section of the settings.
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
        _fx("USDCHF", "0.00001"),
        _fx("USDCAD", "0.00001"),
    )
}


class Catalogue:
    """The instruments of this installation; an unlisted symbol trades in whole units at whole prices."""

    def __init__(self, listed: Mapping[str, Instrument] = DEFAULT_INSTRUMENTS) -> None:
        self._listed = dict(listed)

    def listed(self, symbol: str) -> Instrument | None:
        """The listed instrument, or none."""
        return self._listed.get(symbol)

    def find(self, symbol: str) -> Instrument:
        """The listed instrument, or one with step 1 and tick 1, as the v1 contract has it for unlisted symbols."""
        return self._listed.get(symbol) or Instrument(symbol=symbol)


def check_multiple(amount: Decimal, step: Decimal, field: str, instrument: Instrument) -> None:
    """Raise InvalidField for a quantity off the step or a price off the tick."""
    if not is_multiple(amount, step):
        raise InvalidField(field, f"must be a multiple of {plain(step)} for {instrument.symbol}")
