"""The market as this process knows it: the newest quote of each venue and symbol, and never a stale one.

`PolledQuotes` reads a venue's feed in the background; `QuoteBoard` answers from memory, so no order waits for a venue.
Reads quote feeds; writes nothing.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from datetime import timedelta
from itertools import islice

import structlog

from switchyard.domain.ids import VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.flow.clock import Wake
from switchyard.ports.clock import Clock
from switchyard.ports.quotes import QuoteFeed, QuoteSource, TimedQuote
from switchyard.ports.venue import VenueUnavailable
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# Symbols of the catalogue that are polled all the time; those beyond are polled once they are asked for.
LISTED_MAX = 256
# Other symbols that are polled because they were asked for; the one asked for least recently makes room.
ASKED_MAX = 128
# A symbol outside the catalogue that was not asked for within this time is not polled any more.
ASKED_SECONDS = 600.0
# Symbols per request: the longest possible ones stay well below the 8 KiB that common servers accept as a target.
PAGE_MAX = 64
# The shortest pause after a poll: symbols that are asked for the first time wait for it together.
PAUSE_SECONDS_MIN = 0.1
# A venue that fails is asked less often, up to this factor of the interval: its quotes should be back soon after it is.
BACKOFF_MAX = 4
# How long `ask` waits for the first quote of a symbol: a request to a healthy venue takes far less.
ASK_SECONDS = 1.0


class PolledQuotes:
    """ports.quotes.QuoteSource from a venue's feed, which `run` polls."""

    def __init__(
        self,
        venue: VenueName,
        feed: QuoteFeed,
        *,
        listed: Iterable[str],
        interval: timedelta,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._venue = venue
        self._feed = feed
        self._listed = dict.fromkeys(islice(listed, LISTED_MAX))
        self._interval = interval.total_seconds()
        self._clock = clock
        self._metrics = metrics
        self._latest: dict[str, TimedQuote] = {}
        self._asked: dict[str, float] = {}
        """When each symbol outside `_listed` was last asked for, the least recent first."""
        self._polled: frozenset[str] = frozenset()
        """The symbols of the last poll, also of a failed one."""
        self._is_started = False
        self._failures = 0
        self._unusable: frozenset[str] = frozenset()
        self._wanted = Wake()
        self._done = asyncio.Event()
        for outcome in ("answered", "failed"):
            metrics.quote_polls.labels(venue, outcome)  # a dashboard shows it from the start
        metrics.quotes_unusable.labels(venue)

    def current(self, symbol: str) -> TimedQuote | None:
        """Return the newest quote, and poll the symbol from now on."""
        if symbol not in self._listed:
            self._note(symbol)
        return self._latest.get(symbol)

    async def ask(self, symbol: str) -> TimedQuote | None:
        """Return the newest quote; waits up to ASK_SECONDS for the first poll of the symbol."""
        found = self.current(symbol)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                while symbol not in self._polled:
                    await self._done.wait()
        return found or self._latest.get(symbol)

    async def started(self) -> None:
        """Return once the first poll has ended, with quotes or without."""
        while not self._is_started:
            await self._done.wait()

    async def run(self) -> None:
        """Poll for ever; a symbol that is asked for the first time is polled at once while the venue answers."""
        loop = asyncio.get_running_loop()
        while True:
            await self.run_once()
            ends_at = loop.time() + self._interval * min(1 + self._failures, BACKOFF_MAX)
            await asyncio.sleep(PAUSE_SECONDS_MIN)
            while not self._failures and loop.time() < ends_at:
                await self._wanted.wait(ends_at - loop.time())
                if new := [symbol for symbol in self._asked if symbol not in self._polled]:
                    await self._poll(new)
                    self._end(self._polled.union(new))
                    await asyncio.sleep(PAUSE_SECONDS_MIN)
            await asyncio.sleep(ends_at - loop.time())

    async def run_once(self) -> int:
        """Ask once for every symbol in use; returns the number of usable quotes."""
        symbols = self._symbols()
        for symbol in self._latest.keys() - symbols:
            del self._latest[symbol]
        await self._poll(list(symbols))
        self._end(frozenset(symbols))
        return 0 if self._failures else len(self._latest)

    def _end(self, polled: frozenset[str]) -> None:
        self._polled = polled
        self._is_started = True
        done, self._done = self._done, asyncio.Event()
        done.set()

    async def _poll(self, symbols: list[str]) -> None:
        try:
            await self._read(symbols)
        except VenueUnavailable as error:
            self._fail(str(error))

    async def _read(self, symbols: list[str]) -> None:
        unusable: dict[str, str] = {}
        for start in range(0, len(symbols), PAGE_MAX):
            page = symbols[start : start + PAGE_MAX]
            answer = await self._feed.read(page)
            for symbol in page:
                # A symbol without a usable quote now has none: the one before is not the market any more.
                self._latest.pop(symbol, None)
            self._latest.update((symbol, found) for symbol, found in answer.quotes.items() if symbol in page)
            unusable.update(answer.unusable)
        if symbols:
            self._metrics.quote_polls.labels(self._venue, "answered").inc()
            if self._failures:
                log.info("quotes_available", venue=self._venue)
            self._failures = 0
        self._report(unusable, symbols)

    def _fail(self, error: str) -> None:
        self._metrics.quote_polls.labels(self._venue, "failed").inc()
        if not self._failures:  # once, until it answers again
            log.warning("quotes_unavailable", venue=self._venue, error=error)
        self._failures += 1

    def _report(self, unusable: dict[str, str], symbols: list[str]) -> None:
        if unusable:
            self._metrics.quotes_unusable.labels(self._venue).inc(len(unusable))
        for symbol in sorted(unusable.keys() - self._unusable):
            log.warning("quote_unusable", venue=self._venue, symbol=symbol, error=unusable[symbol])
        self._unusable = self._unusable.difference(symbols, ("?",)).union(unusable)

    def _symbols(self) -> dict[str, None]:
        now = self._clock.monotonic()
        for symbol in [symbol for symbol, asked_at in self._asked.items() if now - asked_at > ASKED_SECONDS]:
            del self._asked[symbol]
        return self._listed | dict.fromkeys(self._asked)

    def _note(self, symbol: str) -> None:
        if self._asked.pop(symbol, None) is None:
            if len(self._asked) >= ASKED_MAX:
                del self._asked[next(iter(self._asked))]
            self._wanted.notify()
        self._asked[symbol] = self._clock.monotonic()


class QuoteBoard:
    """ports.quotes.Quotes over the sources of all venues; a quote older than `age_max` is none."""

    def __init__(self, clock: Clock, metrics: Metrics, *, age_max: timedelta) -> None:
        self._clock = clock
        self._metrics = metrics
        self._age_seconds_max = age_max.total_seconds()
        self._sources: dict[VenueName, QuoteSource] = {}

    def add(self, venue: VenueName, source: QuoteSource) -> None:
        """Answer this venue's quotes from the source."""
        self._sources[venue] = source
        self._metrics.quotes_missing.labels(venue)  # a dashboard shows it from the start

    def share(self, venue: VenueName, other: VenueName) -> bool:
        """Answer the other venue's quotes from the source of this one; returns whether it has one."""
        if venue in self._sources:
            self.add(other, self._sources[venue])
        return venue in self._sources

    def quote(self, venue: VenueName, symbol: str) -> Quote | None:
        """Return the venue's quote unless it is stale; does not wait."""
        source = self._sources.get(venue)
        if source is None:
            return None
        found = self._fresh(venue, source.current(symbol))
        return None if found is None else found.quote

    async def ask(self, venue: VenueName, symbol: str) -> Quote | None:
        """Return the same; waits briefly for a symbol that was not asked for before."""
        found = await self.timed(venue, symbol)
        return None if found is None else found.quote

    async def timed(self, venue: VenueName, symbol: str) -> TimedQuote | None:
        """Return the same as `ask`, with the time from which its age counts."""
        source = self._sources.get(venue)
        return None if source is None else self._fresh(venue, await source.ask(symbol))

    def age_seconds(self, found: TimedQuote) -> float:
        """How long ago the quote was the market."""
        return max(0.0, self._clock.monotonic() - found.as_of)

    def _fresh(self, venue: VenueName, found: TimedQuote | None) -> TimedQuote | None:
        if found is not None and self._clock.monotonic() - found.as_of <= self._age_seconds_max:
            return found
        self._metrics.quotes_missing.labels(venue).inc()
        return None
