"""Quotes, and whether a quote triggers a stop order. Pure."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from switchyard.domain.ids import VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.instruments import Instrument
from switchyard.domain.orders.order import Side


class MarketQuote(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A quote that is not stale; the body of `GET /quotes/{symbol}`."""

    symbol: str
    venue: VenueName
    bid: Decimal
    ask: Decimal
    at: datetime
    """When the market was like this, by the clock of the quote's source."""
    age_seconds: float
    """How long ago that was; measured without our wall clock, so it need not be the difference of `at` and now."""


class ListedInstrument(Instrument, frozen=True, kw_only=True):
    """An instrument of the catalogue and the venue that its orders go to."""

    venue: VenueName


# Every property of an instrument is listed, also those that are added to the catalogue later.
_WIRE_NAMES = {
    field.name: "".join(part.title() if index else part for index, part in enumerate(field.name.split("_")))
    for field in msgspec.structs.fields(ListedInstrument)
}


def as_listed(instrument: Instrument, venue: VenueName) -> dict[str, Any]:
    """The members of `GET /instruments` for one instrument, in camel case."""
    values = {**msgspec.structs.asdict(instrument), "venue": venue}
    return {wire_name: values[name] for name, wire_name in _WIRE_NAMES.items()}


def listed_instrument(members: Mapping[str, Any]) -> ListedInstrument:
    """The instrument in a response; members that this version does not know are ignored."""
    known = {name: members[wire_name] for name, wire_name in _WIRE_NAMES.items() if wire_name in members}
    return msgspec.convert(known, ListedInstrument)


def is_triggered(side: Side, stop_price: Decimal, quote: Quote) -> bool:
    """Whether the quote triggers a stop order: the price that it would get is at the stop price or beyond it."""
    return quote.ask >= stop_price if side == "BUY" else quote.bid <= stop_price
