"""Quotes in memory: which symbols are polled, how long a quote counts, and what happens while a venue fails."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal

import pytest
from structlog.testing import capture_logs

from switchyard.domain.ids import VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.flow import quotes
from switchyard.flow.quotes import PolledQuotes, QuoteBoard
from switchyard.ports.quotes import QuotePage, TimedQuote
from switchyard.ports.venue import VenueUnavailable
from switchyard.telemetry.metrics import Metrics
from tests.support.memory.clock import START, ManualClock

SIM = VenueName("sim")
SECOND = timedelta(seconds=1)
QUOTE = Quote(bid=Decimal(1), ask=Decimal(2), at=START)


class ScriptedFeed:
    """A feed of the symbols in `market`; `error` makes it fail, `held` makes it wait."""

    def __init__(self, clock: ManualClock, *market: str) -> None:
        self._clock = clock
        self.market = set(market)
        self.unusable: dict[str, str] = {}
        self.error: str | None = None
        self.held: asyncio.Event | None = None
        self.asked: list[list[str]] = []

    async def read(self, symbols: Sequence[str]) -> QuotePage:
        self.asked.append(list(symbols))
        if self.held is not None:
            await self.held.wait()
        if self.error is not None:
            raise VenueUnavailable(self.error)
        found = {symbol: TimedQuote(QUOTE, self._clock.monotonic()) for symbol in symbols if symbol in self.market}
        return QuotePage(found, self.unusable)


class Setup:
    """A board over one polled venue."""

    def __init__(self, *listed: str, interval: timedelta = SECOND) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.feed = ScriptedFeed(self.clock, "BTC", "ETH", "XRP")
        self.polled = PolledQuotes(
            SIM, self.feed, listed=listed, interval=interval, clock=self.clock, metrics=self.metrics
        )
        self.board = QuoteBoard(self.clock, self.metrics, age_max=5 * SECOND)
        self.board.add(SIM, self.polled)

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, {"venue": SIM, **labels}) or 0


async def test_listed_symbols_are_polled_from_the_start() -> None:
    setup = Setup("BTC", "ETH")
    assert await setup.polled.run_once() == 2
    assert setup.feed.asked == [["BTC", "ETH"]]
    assert setup.board.quote(SIM, "BTC") == QUOTE
    assert setup.count("quote_polls_total", outcome="answered") == 1


async def test_another_symbol_is_polled_from_when_it_is_asked_for_until_nobody_does() -> None:
    setup = Setup("BTC")
    assert setup.board.quote(SIM, "ETH") is None
    await setup.polled.run_once()
    assert setup.board.quote(SIM, "ETH") == QUOTE
    setup.clock.advance(timedelta(seconds=quotes.ASKED_SECONDS - 1))
    await setup.polled.run_once()
    assert setup.board.quote(SIM, "ETH") == QUOTE
    setup.clock.advance(timedelta(seconds=quotes.ASKED_SECONDS + 1))
    await setup.polled.run_once()
    assert setup.feed.asked == [["BTC", "ETH"], ["BTC", "ETH"], ["BTC"]]
    assert setup.polled.current("ETH") is None  # and its old quote is gone


async def test_without_symbols_the_venue_is_not_asked() -> None:
    setup = Setup()
    assert await setup.polled.run_once() == 0
    assert setup.feed.asked == []


async def test_the_symbols_in_use_are_bounded_and_the_least_recent_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotes, "LISTED_MAX", 2)
    monkeypatch.setattr(quotes, "ASKED_MAX", 2)
    monkeypatch.setattr(quotes, "PAGE_MAX", 3)
    setup = Setup("A", "B", "C")
    for symbol in ("X", "Y", "X", "Z"):
        setup.board.quote(SIM, symbol)
    await setup.polled.run_once()
    assert setup.feed.asked == [["A", "B", "X"], ["Z"]]


async def test_a_stale_quote_is_none() -> None:
    setup = Setup("BTC")
    await setup.polled.run_once()
    setup.clock.advance(5 * SECOND)
    assert setup.board.quote(SIM, "BTC") == QUOTE
    setup.clock.advance(SECOND / 10)
    assert setup.board.quote(SIM, "BTC") is None
    assert await setup.board.ask(SIM, "BTC") is None
    assert setup.count("quotes_missing_total") == 2
    await setup.polled.run_once()
    assert setup.board.quote(SIM, "BTC") == QUOTE


async def test_a_step_of_the_wall_clock_makes_no_quote_stale() -> None:
    setup = Setup("BTC")
    await setup.polled.run_once()
    setup.clock.step(timedelta(hours=1))
    assert setup.board.quote(SIM, "BTC") == QUOTE


async def test_a_symbol_that_the_venue_leaves_out_has_no_quote_any_more() -> None:
    setup = Setup("BTC", "ETH")
    await setup.polled.run_once()
    setup.feed.market.discard("BTC")
    await setup.polled.run_once()
    assert setup.board.quote(SIM, "BTC") is None
    assert setup.board.quote(SIM, "ETH") == QUOTE


async def test_a_failing_venue_keeps_its_quotes_until_they_are_stale_and_is_logged_once() -> None:
    setup = Setup("BTC")
    await setup.polled.run_once()
    setup.feed.error = "HTTP 503"
    with capture_logs() as logs:
        for _ in range(3):
            assert await setup.polled.run_once() == 0
        assert setup.board.quote(SIM, "BTC") == QUOTE
        setup.clock.advance(6 * SECOND)
        assert setup.board.quote(SIM, "BTC") is None
        setup.feed.error = None
        await setup.polled.run_once()
    assert [(line["event"], line.get("error")) for line in logs] == [
        ("quotes_unavailable", "HTTP 503"),
        ("quotes_available", None),
    ]
    assert setup.count("quote_polls_total", outcome="failed") == 3


async def test_an_unusable_quote_is_counted_each_time_and_logged_once() -> None:
    setup = Setup("BTC", "DOGE")
    setup.feed.unusable = {"DOGE": "crossed"}
    with capture_logs() as logs:
        await setup.polled.run_once()
        await setup.polled.run_once()
    assert [(line["event"], line["symbol"]) for line in logs] == [("quote_unusable", "DOGE")]
    assert setup.count("quotes_unusable_total") == 2
    assert setup.board.quote(SIM, "DOGE") is None


async def test_asking_for_a_new_symbol_waits_for_its_first_poll() -> None:
    setup = Setup("BTC", interval=timedelta(hours=1))
    running = asyncio.create_task(setup.polled.run())
    try:
        assert await setup.board.ask(SIM, "ETH") == QUOTE
        assert await setup.board.ask(SIM, "DOGE") is None  # the venue has no such market
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert setup.feed.asked == [["BTC", "ETH"], ["DOGE"]]  # between two polls only the new symbol


async def test_asking_does_not_wait_for_a_venue_that_hangs_or_for_a_symbol_that_is_polled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotes, "ASK_SECONDS", 0.05)
    setup = Setup("BTC")
    await setup.polled.run_once()
    setup.feed.held = asyncio.Event()
    running = asyncio.create_task(setup.polled.run())
    try:
        assert await setup.board.ask(SIM, "BTC") == QUOTE
        assert await setup.board.ask(SIM, "ETH") is None
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_venue_without_a_source_has_no_quote() -> None:
    setup = Setup()
    assert setup.board.quote(VenueName("other"), "BTC") is None
    assert await setup.board.ask(VenueName("other"), "BTC") is None
