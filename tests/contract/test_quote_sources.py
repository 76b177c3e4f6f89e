"""The contract of every source of quotes: a market with an age on the monotonic clock, and never an error."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import pytest

from switchyard.adapters.files.recorded_quotes import RecordedQuotes
from switchyard.adapters.memory.clock import START, ManualClock
from switchyard.adapters.memory.quotes import FixedQuotes
from switchyard.adapters.system_clock import SystemClock
from switchyard.adapters.venues.paper.market import PaperQuotes
from switchyard.domain.ids import VenueName
from switchyard.domain.market.instruments import Catalogue
from switchyard.flow.quotes import PolledQuotes
from switchyard.ports.clock import Clock
from switchyard.ports.quotes import QuoteSource
from switchyard.telemetry.metrics import Metrics
from tests.support.http_quotes import http_quotes
from tests.support.venue_process import VenueProcess

CSV = "at,symbol,bid,ask\n2025-03-04T09:30:00Z,USDJPY,150.01,150.02\n"
JSON = '{"at": "2025-03-04T09:30:00Z", "symbol": "USDJPY", "bid": 150.01, "ask": "150.02"}\n'


class Opened(NamedTuple):
    """A source and the clock that its ages count on."""

    source: QuoteSource
    clock: Clock


@asynccontextmanager
async def paper(folder: Path) -> AsyncIterator[Opened]:
    clock = ManualClock()
    yield Opened(PaperQuotes(Catalogue(), clock), clock)


@asynccontextmanager
async def fixed(folder: Path) -> AsyncIterator[Opened]:
    clock = ManualClock()
    yield Opened(FixedQuotes(clock), clock)


@asynccontextmanager
async def csv(folder: Path) -> AsyncIterator[Opened]:
    clock = ManualClock()
    (folder / "quotes.csv").write_text(CSV)
    yield Opened(RecordedQuotes(folder / "quotes.csv", clock=clock), clock)


@asynccontextmanager
async def json_lines(folder: Path) -> AsyncIterator[Opened]:
    clock = ManualClock()
    (folder / "quotes.jsonl").write_text(JSON)
    yield Opened(RecordedQuotes(folder / "quotes.jsonl", clock=clock), clock)


@asynccontextmanager
async def http(folder: Path) -> AsyncIterator[Opened]:
    """The feed of the simulator in its own process, with a clock that is an hour behind."""
    clock = SystemClock()
    simulator = VenueProcess(folder, "--clock-offset", "-3600")
    feed = http_quotes(simulator.url, clock)
    try:
        await simulator.start()
        await feed.start()
        polled = PolledQuotes(
            VenueName("broker"),
            feed,
            listed=["USDJPY"],
            interval=timedelta(seconds=1),
            clock=clock,
            metrics=Metrics(),
        )
        await polled.run_once()
        yield Opened(polled, clock)
    finally:
        await feed.close()
        simulator.close()


OPENED: dict[str, Callable[[Path], AbstractAsyncContextManager[Opened]]] = {
    "paper": paper,
    "fixed": fixed,
    "csv": csv,
    "json_lines": json_lines,
    "http": http,
}


@pytest.fixture(params=list(OPENED))
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    async with OPENED[request.param](tmp_path) as opened:
        yield opened


async def test_a_source_has_a_dated_market_of_this_moment(opened: Opened) -> None:
    for found in (opened.source.current("USDJPY"), await opened.source.ask("USDJPY")):
        assert found is not None
        assert Decimal(0) < found.quote.bid <= found.quote.ask
        assert found.quote.at is not None
        assert found.quote.at.tzinfo is not None
        # Also where the source's wall clock is an hour behind ours: the age is measured on its own clock.
        assert 0 <= opened.clock.monotonic() - found.as_of < 3


def recorded(folder: Path, text: str, clock: ManualClock, **options: timedelta) -> RecordedQuotes:
    path = folder / "quotes.csv"
    path.write_text(text)
    start = START + options["start"] if "start" in options else None
    return RecordedQuotes(path, clock=clock, start=start)


THREE = """at,symbol,bid,ask,volume
2025-03-04T09:30:10Z,USDJPY,150.05,150.06,7
2025-03-04T09:30:00Z,USDJPY,150.01,150.02,9
2025-03-04T10:30:04+01:00,EURUSD,1.1,1.2,3
"""


def test_a_recorded_file_is_replayed_at_its_recorded_distances(tmp_path: Path) -> None:
    clock = ManualClock()
    source = recorded(tmp_path, THREE, clock)
    assert source.current("EURUSD") is None  # its time has not come
    first = source.current("USDJPY")
    assert first is not None
    assert (first.quote.bid, first.quote.at) == (Decimal("150.01"), START)
    clock.advance(timedelta(seconds=4))
    assert (found := source.current("EURUSD")) is not None
    assert found.as_of == 4
    clock.advance(timedelta(seconds=5.5))
    assert (found := source.current("USDJPY")) is not None
    assert (found.quote.bid, clock.monotonic() - found.as_of) == (Decimal("150.01"), 9.5)
    clock.advance(timedelta(seconds=1))
    assert (found := source.current("USDJPY")) is not None
    assert (found.quote.bid, clock.monotonic() - found.as_of) == (Decimal("150.05"), 0.5)
    clock.advance(timedelta(hours=1))  # after the end the last quote only gets older
    assert (found := source.current("USDJPY")) is not None
    assert clock.monotonic() - found.as_of == 3600.5


def test_a_step_of_the_wall_clock_does_not_move_a_replay(tmp_path: Path) -> None:
    clock = ManualClock()
    source = recorded(tmp_path, THREE, clock)
    clock.step(timedelta(hours=1))
    assert (found := source.current("USDJPY")) is not None
    assert found.quote.bid == Decimal("150.01")


def test_processes_that_start_at_different_times_agree_if_the_start_is_set(tmp_path: Path) -> None:
    clock = ManualClock()
    early = recorded(tmp_path, THREE, clock, start=timedelta(seconds=1))
    assert early.current("USDJPY") is None
    clock.advance(timedelta(seconds=12))
    late = recorded(tmp_path, THREE, clock, start=timedelta(seconds=1))
    assert early.current("USDJPY") == late.current("USDJPY") is not None
