"""Credentials, accounts and symbols at a broker: what leaves for it, and what its answers mean."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from switchyard.adapters.venues.http.adapter import http_venue
from switchyard.bootstrap.capabilities import declared_capabilities
from switchyard.bootstrap.venues import credentials_of, names_at, remote_venue
from switchyard.domain.errors import SettingError
from switchyard.domain.ids import VenueName
from switchyard.domain.orders.order import Order
from switchyard.ports.venue import Accepted, VenueRejected
from switchyard.settings import VenueSettings, load_settings
from switchyard.venue.bridge import Bridge
from switchyard.venue.transport import Pool
from tests.support.http_quotes import http_quotes
from tests.support.memory.clock import START, ManualClock
from tests.support.scripted_server import Reply, ScriptedServer, reply, scripted_server
from tests.support.venue_orders import an_order, bare, by_id

ORDER = an_order("one", qty="1000", price="145.001")
SHOWN = {
    "broker_order_id": "brk-1",
    "accepted_at": "2026-01-05T09:00:00Z",
    "status": "accepted",
    "idempotency_key": "one",
    "symbol": "USD/JPY",
    "intent": "BUY",
    "qty": 1000,
}


def venue_settings(**changes: str) -> VenueSettings:
    names = {f"VENUE_{name.upper()}_SIM": value for name, value in changes.items()}
    [venue] = load_settings({"VENUE_URL_SIM": "http://broker", "SWITCHYARD_CONFIG": "/dev/null", **names}).venues
    return venue


@asynccontextmanager
async def venue_at(server: ScriptedServer, settings: VenueSettings) -> AsyncIterator[Bridge]:
    """The venue as a process opens it with these settings."""
    venue = http_venue(
        VenueName("sim"),
        url=server.url,
        capabilities=declared_capabilities(settings),
        clock=ManualClock(),
        names=names_at(settings),
        headers=credentials_of(settings, settings.token),
    )
    await venue.start()
    try:
        yield venue
    finally:
        await venue.close()


async def exchanged(settings: VenueSettings, *replies: Reply, order: Order = ORDER) -> tuple[Any, ScriptedServer]:
    async with scripted_server(*replies) as server, venue_at(server, settings) as venue:
        return await venue.submit(order), server


async def test_an_order_leaves_under_the_brokers_names_and_its_answer_is_understood() -> None:
    settings = venue_settings(symbols="USDJPY=USD/JPY", accounts=f"{ORDER.account_id}=A-17")
    outcome, server = await exchanged(settings, reply(200, SHOWN))
    assert bare(outcome) == Accepted("brk-1")
    [body] = server.posted
    assert (body["symbol"], body["account"]) == ("USD/JPY", "A-17")


async def test_a_conflict_shows_the_order_under_the_brokers_symbol() -> None:
    settings = venue_settings(symbols="USDJPY=USD/JPY")
    outcome, server = await exchanged(settings, reply(409, {"error": "PROCESSED", "order": SHOWN}))
    assert bare(outcome) == Accepted("brk-1", already_processed=True)
    assert "account" not in server.posted[0], "no account is sent where none is mapped"


async def test_an_answer_under_our_own_name_is_about_another_order() -> None:
    settings = venue_settings(symbols="USDJPY=USD/JPY")
    outcome, _ = await exchanged(settings, reply(200, {**SHOWN, "symbol": "USDJPY"}))
    assert not isinstance(outcome, Accepted)


async def test_an_order_of_an_account_without_one_at_the_broker_is_not_sent() -> None:
    outcome, server = await exchanged(venue_settings(accounts="somebody=A-1"), reply(200, SHOWN))
    reason = f"VENUE_ACCOUNTS_SIM has no account of sim for {ORDER.account_id}"
    assert outcome == VenueRejected("UNAUTHORIZED", reason)
    assert server.requests == []


@pytest.mark.parametrize(
    ("given", "header", "value"),
    [
        ({"token": "s3cret"}, "authorization", "Bearer s3cret"),
        ({"token": "s3cret", "token_header": "X-Api-Key"}, "x-api-key", "s3cret"),
        ({"url": "http://m%40e:s3cret@broker"}, "authorization", "Basic bUBlOnMzY3JldA=="),
        ({"url": "https://s3cret@broker/api"}, "authorization", "Basic czNjcmV0Og=="),
    ],
)
async def test_every_request_carries_the_credentials(given: Mapping[str, str], header: str, value: str) -> None:
    settings = venue_settings(**given)
    absent = reply(404, {"error": "UNKNOWN_ORDER"})
    async with scripted_server(reply(200, SHOWN), reply(200, SHOWN), absent) as server:
        async with venue_at(server, settings) as venue:
            await venue.submit(ORDER)
            await venue.cancel(ORDER)
            assert await venue.find(by_id(ORDER.venue_client_order_id)) is None
        assert [request.headers[header] for request in server.requests] == [value] * 3
    assert "s3cret" not in repr(settings)


async def test_a_quote_comes_back_under_our_name() -> None:
    settings = venue_settings(symbols="USDJPY=USD/JPY", token="s3cret")
    quote = {"symbol": "USD/JPY", "bid": 150.01, "ask": 150.02, "at": START.isoformat(), "ask_size": 7}
    answer = reply(200, {"quotes": [quote]}, X_Venue_Time=(START + timedelta(seconds=1)).isoformat())
    async with scripted_server(answer) as server:
        quotes = http_quotes(
            server.url, ManualClock(), names=names_at(settings), headers=credentials_of(settings, settings.token)
        )
        await quotes.start()
        page = await quotes.read(["USDJPY"])
        await quotes.close()
        [request] = server.requests
    assert request.path == "/quotes?symbols=USD%2FJPY"
    assert request.headers["authorization"] == "Bearer s3cret"
    assert list(page.quotes) == ["USDJPY"]
    assert (page.quotes["USDJPY"].quote.ask_size, page.quotes["USDJPY"].quote.bid_size) == (Decimal(7), None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"symbols": "A=X,B=X"}, "VENUE_SYMBOLS_SIM: must give each symbol another name"),
        ({"symbols": "A"}, "VENUE_SYMBOLS_SIM: must look like"),
        ({"accounts": "a b=X"}, "VENUE_ACCOUNTS_SIM: must be an account id"),
        ({"token": "line\nbreak"}, "VENUE_TOKEN_SIM: must be 1 to 4096 printable"),
        ({"token": "t", "url": "http://me:pw@broker"}, "VENUE_TOKEN_SIM: the venue's URL has credentials too"),
        ({"token_header": "X Api"}, "VENUE_TOKEN_HEADER_SIM: must be the name of an HTTP header"),
    ],
)
def test_a_wrong_setting_names_itself_and_shows_no_secret(given: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError) as raised:
        venue_settings(**given)
    assert message in str(raised.value)
    assert "break" not in str(raised.value) and "pw" not in str(raised.value)


async def test_the_credentials_of_a_url_are_sent_as_basic_authentication_and_not_in_the_host_header() -> None:
    absent = reply(404, {"error": "UNKNOWN_ORDER"})
    async with scripted_server(reply(200, SHOWN), absent) as server:
        venue = remote_venue(
            venue_settings(url=server.url.replace("http://", "http://me:p%2Fw@"), symbols="USDJPY=USD/JPY"),
            ManualClock(),
            sends=Pool(1),
        )
        await venue.start()
        assert bare(await venue.submit(ORDER)) == Accepted("brk-1")
        assert await venue.find(by_id(ORDER.venue_client_order_id)) is None
        await venue.close()
        assert {request.headers["authorization"] for request in server.requests} == {"Basic bWU6cC93"}
        assert {request.headers["host"] for request in server.requests} == {server.url.removeprefix("http://")}
        assert [request.path for request in server.requests] == ["/orders", "/orders/one"]
