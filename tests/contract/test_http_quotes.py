"""A broker's quotes: their ages by its own clock, and everything that makes an answer or a quote unusable."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime
from typing import Any

import pytest

from switchyard.adapters.memory.clock import START, ManualClock
from switchyard.ports.quotes import QuotePage
from switchyard.ports.venue import VenueUnavailable
from switchyard.venue.quotes import VenueQuotes
from tests.support.http_quotes import http_quotes
from tests.support.ports import free_port
from tests.support.scripted_server import Reply, hang_up, reply, scripted_server, then_hang_up

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


@asynccontextmanager
async def feed(url: str, clock: ManualClock) -> AsyncIterator[VenueQuotes]:
    quotes = http_quotes(url, clock)
    await quotes.start()
    try:
        yield quotes
    finally:
        await quotes.close()


def a_quote(at: datetime = START, **changes: Any) -> dict[str, Any]:
    return {"symbol": "USDJPY", "bid": 150.01, "ask": 150.02, "at": at.isoformat(), **changes}


def answer(*quotes: object, now: datetime | None = START, **headers: str) -> bytes:
    if now is not None:
        headers["X_Venue_Time"] = now.isoformat()
    return reply(200, {"quotes": quotes}, **headers)


async def read(
    *replies: Reply, symbols: Sequence[str] = ("USDJPY",), clock: ManualClock | None = None, times: int = 1
) -> QuotePage:
    """The answer to the last of so many requests."""
    async with scripted_server(*replies) as server, feed(server.url, clock or ManualClock()) as quotes:
        for _ in range(times - 1):
            await quotes.read(symbols)
        return await quotes.read(symbols)


async def test_one_request_asks_for_all_symbols() -> None:
    async with scripted_server(answer(a_quote())) as server, feed(server.url, ManualClock()) as quotes:
        page = await quotes.read(["USDJPY", "BTC/USD", "X:Y"])
        assert [request.path for request in server.requests] == ["/quotes?symbols=USDJPY,BTC%2FUSD,X%3AY"]
    assert page.unusable == {}
    [(symbol, found)] = page.quotes.items()
    assert (symbol, found.quote.bid, found.quote.ask) == ("USDJPY", Decimal("150.01"), Decimal("150.02"))
    assert (found.quote.at, found.as_of) == (START, 0)


@pytest.mark.parametrize("skew", [timedelta(), HOUR, -HOUR])
async def test_the_age_is_measured_on_the_brokers_clock(skew: timedelta) -> None:
    clock = ManualClock()
    clock.advance(100 * SECOND)
    page = await read(answer(a_quote(START + skew - 3 * SECOND), now=START + skew), clock=clock)
    assert page.quotes["USDJPY"].as_of == 97


async def test_a_step_of_our_clock_does_not_change_an_age() -> None:
    clock = ManualClock()
    clock.step(HOUR)
    page = await read(answer(a_quote(START - 2 * SECOND)), clock=clock)
    assert page.quotes["USDJPY"].as_of == -2


async def test_without_its_own_header_the_date_is_the_brokers_clock_and_ages_are_rounded_up() -> None:
    date = format_datetime(START.replace(microsecond=0), usegmt=True)
    page = await read(answer(a_quote(START - 2 * SECOND), now=None, Date=date))
    assert page.quotes["USDJPY"].as_of == -3


async def test_a_quote_of_a_broker_without_any_clock_is_not_used() -> None:
    with pytest.raises(VenueUnavailable, match="no time in the response"):
        await read(answer(a_quote(), now=None))


async def test_the_brokers_clock_is_carried_on_over_an_answer_without_it() -> None:
    clock = ManualClock()
    replies = (answer(a_quote()), answer(a_quote(), now=None))
    async with scripted_server(*replies) as server, feed(server.url, clock) as quotes:
        await quotes.read(["USDJPY"])
        clock.advance(4 * SECOND)
        page = await quotes.read(["USDJPY"])
    assert clock.monotonic() - page.quotes["USDJPY"].as_of >= 4


@pytest.mark.parametrize(
    ("quote", "message"),
    [
        (a_quote(bid=150.03), "bid 150.03 and ask 150.02 are no market"),
        (a_quote(bid=0), "bid 0 and ask 150.02 are no market"),
        (a_quote(START + 3 * SECOND), "its time is 3.0 s ahead of the broker's clock"),
        (a_quote(START.replace(tzinfo=None)), "its time has no offset"),
    ],
)
async def test_an_unusable_quote_is_named_and_the_others_are_used(quote: dict[str, Any], message: str) -> None:
    page = await read(answer(quote, a_quote(symbol="BTC")), symbols=["USDJPY", "BTC"])
    assert page.unusable == {"USDJPY": message}
    assert list(page.quotes) == ["BTC"]


@pytest.mark.parametrize(
    "quote",
    [
        7,
        {},
        a_quote(bid="x"),
        a_quote(bid=-1),
        a_quote(ask=1e20),
        a_quote(bid=0.123456789),
        {**a_quote(), "at": "today"},
    ],
)
async def test_an_unreadable_quote_does_not_hold_up_the_others(quote: object) -> None:
    page = await read(answer(quote, a_quote(symbol="BTC")), symbols=["USDJPY", "BTC"])
    assert list(page.unusable) == ["?"]
    assert list(page.quotes) == ["BTC"]


async def test_quotes_that_were_not_asked_for_are_ignored() -> None:
    page = await read(answer(a_quote(symbol="ETH"), a_quote(symbol="x" * 100)))
    assert page == QuotePage({}, {})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (reply(500, {"error": "X"}), "HTTP 500"),
        (reply(404, {"error": "NO_SUCH_ROUTE"}), "HTTP 404"),
        (reply(429, {}, Retry_After="1"), "HTTP 429"),
        (reply(302, b"", Location="http://127.0.0.1:1/"), "HTTP 302"),
        (reply(200, b"<html>"), "the response cannot be decoded"),
        (reply(200, {"quotes": 7}), "the response cannot be decoded"),
        (answer(a_quote(), Age="7"), "a cache answered"),
        (reply(200, b"x" * 70_000), "exceeds 65536 bytes"),
        (then_hang_up(answer(a_quote())[:-5]), "NETWORK_DISCONNECTED|UNKNOWN"),
        (hang_up, "NETWORK_DISCONNECTED"),
    ],
)
async def test_an_answer_without_quotes_is_an_error(bad: Reply, message: str) -> None:
    with pytest.raises(VenueUnavailable, match=message):
        await read(bad)


async def test_a_broker_that_is_gone_is_an_error() -> None:
    async with feed(f"http://127.0.0.1:{free_port()}", ManualClock()) as quotes:
        with pytest.raises(VenueUnavailable, match="BROKER_DOWN"):
            await quotes.read(["USDJPY"])
