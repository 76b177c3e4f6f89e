"""Reads a broker's market over the HTTP protocol of `wire`: one request for many symbols.

The age of a quote is the difference between the broker's own clock and the quote's time, so a step of our clock, or a
broker whose clock is wrong, changes nothing. It keeps no state except the broker's clock.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final
from urllib.parse import quote as quoted

import msgspec

from switchyard.adapters.venues.http.messages import VenueNames
from switchyard.adapters.venues.http.outcomes import decoded, describe
from switchyard.adapters.venues.http.transport import BrokerResponse, Pool, Transport
from switchyard.adapters.venues.http.venue import VenueTime
from switchyard.adapters.venues.wire import QuoteResponse, QuotesResponse
from switchyard.domain.ids import VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.orders.reasons import printable
from switchyard.domain.values import canonical
from switchyard.ports.clock import Clock
from switchyard.ports.quotes import QuotePage, TimedQuote
from switchyard.ports.venue import VenueUnavailable

# One poll at a time, and one connection that a time-out may have just destroyed.
CONNECTIONS_MAX: Final = 2
# A slower answer is of little use: its quotes have aged by as much.
RESPONSE_SECONDS: Final = 2.0
# About 1 KiB for each of 64 symbols; a longer answer is not a list of quotes.
PAGE_BYTES_MAX: Final = 64 * 1024
# The `Date` header is cut to whole seconds, so the broker's clock may be ahead of it by so much.
DATE_RESOLUTION: Final = timedelta(seconds=1)
# A quote may be this far ahead of the broker's clock as we know it. Beyond that it would look fresh although it is not.
AHEAD_MAX: Final = timedelta(seconds=2)
# What a log line shows of an unreadable quote's error.
ERROR_LENGTH_MAX: Final = 200

_decode_quote = msgspec.json.Decoder(QuoteResponse).decode


class HttpQuotes:
    """ports.quotes.QuoteFeed of one broker."""

    def __init__(
        self,
        name: VenueName,
        *,
        url: str,
        clock: Clock,
        names: VenueNames | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        note_unasked: Callable[[], None] = lambda: None,
    ) -> None:
        """`note_unasked` as in `Transport`."""
        self._name = name
        self._names = names or VenueNames()
        self._clock = clock
        self._transport = Transport(url, Pool(CONNECTIONS_MAX), headers=headers, note_unasked=note_unasked)
        self._time = VenueTime(clock)

    async def start(self) -> None:
        """Create the connection pool."""
        await self._transport.start()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def read(self, symbols: Sequence[str]) -> QuotePage:
        """Ask the broker for these symbols, under its names of them; raises VenueUnavailable."""
        page = await self._read([self._names.symbol_there(symbol) for symbol in symbols])
        here = self._names.symbol_here
        quotes = {here(symbol): quote for symbol, quote in page.quotes.items()}
        return QuotePage(quotes, {here(symbol): problem for symbol, problem in page.unusable.items()})

    async def _read(self, symbols: Sequence[str]) -> QuotePage:
        asked_at = self._clock.monotonic()
        path = "/quotes?symbols=" + ",".join(quoted(symbol, safe="") for symbol in symbols)
        exchange = await self._transport.ask("GET", path, response_seconds=RESPONSE_SECONDS, bytes_max=PAGE_BYTES_MAX)
        if not isinstance(exchange, BrokerResponse) or exchange.status != 200:
            raise VenueUnavailable(f"{self._name}: {describe(exchange)}")
        if exchange.is_cached:
            raise VenueUnavailable(f"{self._name}: a cache answered instead of the broker")
        page = decoded(exchange.body, QuotesResponse)
        if page is None:
            raise VenueUnavailable(f"{self._name}: {describe(exchange)}")
        self._time.measure(exchange.venue_time, exchange.date, asked_at)
        now = self._time.now()
        if now is None:
            raise VenueUnavailable(f"{self._name}: no time in the response (X-Venue-Time or Date), so no ages")
        if exchange.venue_time is None:
            now += DATE_RESOLUTION
        return _quote_page(page, symbols, now, asked_at)


def _quote_page(page: QuotesResponse, symbols: Sequence[str], now: datetime, asked_at: float) -> QuotePage:
    """The usable quotes with their ages by the broker's clock, counted from the time of the request."""
    quotes: dict[str, TimedQuote] = {}
    unusable: dict[str, str] = {}
    for raw in page.quotes:
        try:
            read = _decode_quote(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            unusable["?"] = printable(str(error))[:ERROR_LENGTH_MAX]
            continue
        if read.symbol not in symbols:
            continue
        problem = _problem(read, now)
        if problem is not None:
            unusable[read.symbol] = problem
            continue
        quote = Quote(
            bid=canonical(read.bid),
            ask=canonical(read.ask),
            at=read.at,
            bid_size=None if read.bid_size is None else canonical(read.bid_size),
            ask_size=None if read.ask_size is None else canonical(read.ask_size),
        )
        # From the request on, because the answer may have been on its way for as long as we waited for it.
        quotes[read.symbol] = TimedQuote(quote, asked_at - max(0.0, (now - read.at).total_seconds()))
    return QuotePage(quotes, unusable)


def _problem(read: QuoteResponse, now: datetime) -> str | None:
    if not 0 < read.bid <= read.ask:
        return f"bid {read.bid} and ask {read.ask} are no market"
    if read.at.tzinfo is None:
        return "its time has no offset"
    if read.at > now + AHEAD_MAX:
        return f"its time is {(read.at - now).total_seconds():.1f} s ahead of the broker's clock"
    return None
