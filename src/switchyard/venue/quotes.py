"""Reads the market of a venue whose adapter has quotes: one request for many symbols.

The age of a quote is the difference between the venue's own clock and the quote's time, so a step of our clock, or a
venue whose clock is wrong, changes nothing. It keeps no state except the venue's clock.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from switchyard.domain.ids import VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.orders.reasons import printable
from switchyard.domain.values import canonical
from switchyard.ports.clock import Clock
from switchyard.ports.quotes import QuotePage, TimedQuote
from switchyard.ports.venue import VenueUnavailable
from switchyard.venue import interface
from switchyard.venue.bridge import VenueNames
from switchyard.venue.interface import HasQuotes, Unreadable
from switchyard.venue.transport import Pool, Transport
from switchyard.venue.wire import HttpWire, VenueTime

# One poll at a time, and one connection that a time-out may have just destroyed.
CONNECTIONS: Final = Pool(2)
# A slower answer is of little use: its quotes have aged by as much.
RESPONSE_SECONDS: Final = 2.0
# About 1 KiB for each of 64 symbols; a longer answer is not a list of quotes.
PAGE_BYTES_MAX: Final = 64 * 1024
# The `Date` header is cut to whole seconds, so the venue's clock may be ahead of it by so much.
DATE_RESOLUTION: Final = timedelta(seconds=1)
# A quote may be this far ahead of the venue's clock as we know it. Beyond that it would look fresh although it is not.
AHEAD_MAX: Final = timedelta(seconds=2)
# What a log line shows of an unreadable quote's error.
ERROR_LENGTH_MAX: Final = 200


class VenueQuotes:
    """ports.quotes.QuoteFeed of one venue."""

    def __init__(
        self,
        name: VenueName,
        adapter: HasQuotes,
        *,
        transport: Transport,
        clock: Clock,
        names: VenueNames | None = None,
        time_header: str | None = None,
    ) -> None:
        self._name = name
        self._adapter = adapter
        self._names = names or VenueNames()
        self._clock = clock
        self._transport = transport
        self._time = VenueTime(clock, time_header)

    async def start(self) -> None:
        """Open the connection."""
        await self._transport.start()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def read(self, symbols: Sequence[str]) -> QuotePage:
        """Ask the venue for these symbols, under its names of them; raises VenueUnavailable."""
        there = [self._names.symbol_there(symbol) for symbol in symbols]
        asked_at = self._clock.monotonic()
        wire = HttpWire(
            self._transport,
            self._transport,
            self._time,
            self._clock,
            query_seconds=RESPONSE_SECONDS,
            query_bytes_max=PAGE_BYTES_MAX,
        )
        try:
            with wire.used():
                shown = await self._adapter.quotes(there, wire)
        except Exception as error:
            raise VenueUnavailable(f"{self._name}: {error}") from error
        finally:
            await wire.end()
        now = self._time.now()
        if now is None:
            raise VenueUnavailable(f"{self._name}: no time in the response, so no ages")
        if not self._time.is_exact:
            now += DATE_RESOLUTION
        return self._page(shown, frozenset(there), now, asked_at)

    def _page(
        self, shown: Sequence[interface.Quote | Unreadable], asked: frozenset[str], now: datetime, asked_at: float
    ) -> QuotePage:
        """The usable quotes with their ages by the venue's clock, counted from the time of the request."""
        quotes: dict[str, TimedQuote] = {}
        unusable: dict[str, str] = {}
        for each in shown:
            if isinstance(each, Unreadable):
                unusable["?"] = printable(each.error)[:ERROR_LENGTH_MAX]
                continue
            if each.symbol not in asked:
                continue
            symbol = self._names.symbol_here(each.symbol)
            if (problem := _problem(each, now)) is not None:
                unusable[symbol] = problem
                continue
            quote = Quote(
                bid=canonical(each.bid),
                ask=canonical(each.ask),
                at=each.at,
                bid_size=None if each.bid_size is None else canonical(each.bid_size),
                ask_size=None if each.ask_size is None else canonical(each.ask_size),
            )
            # From the request on, because the answer may have been on its way for as long as we waited for it.
            quotes[symbol] = TimedQuote(quote, asked_at - max(0.0, (now - each.at).total_seconds()))
        return QuotePage(quotes, unusable)


def _problem(read: interface.Quote, now: datetime) -> str | None:
    if not 0 < read.bid <= read.ask:
        return f"bid {read.bid} and ask {read.ask} are no market"
    if read.at.tzinfo is None:
        return "its time has no offset"
    if read.at > now + AHEAD_MAX:
        return f"its time is {(read.at - now).total_seconds():.1f} s ahead of the broker's clock"
    return None
