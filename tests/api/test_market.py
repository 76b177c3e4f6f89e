"""Quotes and the instrument catalogue: over HTTP, in both clients and on the command line."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from switchyard.client import ApiError, AsyncClient, Retry
from switchyard.domain.errors import SettingError
from switchyard.domain.market.instruments import DEFAULT_INSTRUMENTS
from switchyard.settings import load_settings
from tests.support.do_order import do_order, error
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.process import SECRET, run_command
from tests.support.threaded_client import make_client

HEAD = "at,symbol,bid,ask\n"
RECORDED = HEAD + "2025-03-04T09:30:00Z,USDJPY,150.01,150.02\n2025-03-04T09:30:00Z,BTC,63985,63990.5\n"


@pytest.fixture
async def replaying(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway whose market is a file; its quotes count for an hour."""
    (tmp_path / "quotes.csv").write_text(RECORDED)
    source = f"file:{tmp_path / 'quotes.csv'}"
    async with running_gateway(tmp_path, VENUE_QUOTES_SIM=source, SWITCHYARD_QUOTE_AGE_MAX_SEC="3600") as gateway:
        yield gateway


async def test_a_quote_has_bid_ask_time_and_age(gateway: RunningGateway) -> None:
    answer = await gateway.get("/quotes/USDJPY")
    assert answer.status == 200
    quote = answer.json
    assert (quote["symbol"], quote["venue"]) == ("USDJPY", "sim")
    assert 0 < quote["bid"] < quote["ask"]
    assert 0 <= quote["ageSeconds"] < 5
    assert abs(datetime.fromisoformat(quote["at"]) - datetime.now(UTC)) < timedelta(minutes=1)


async def test_the_arrival_quote_of_an_order_is_that_of_the_source(replaying: RunningGateway) -> None:
    shown = (await replaying.get("/quotes/BTC")).json
    assert (shown["bid"], shown["ask"]) == (63985, 63990.5)
    order_id = (await replaying.place(symbol="BTC", qty=1)).json["orderId"]
    [accepted, *_] = (await replaying.get(f"/orders/{order_id}/events")).json["events"]
    assert accepted["data"]["quote"] == {"bid": 63985, "ask": 63990.5, "at": shown["at"]}


async def test_a_symbol_without_a_fresh_quote_is_503_and_orders_are_accepted_without_one(
    replaying: RunningGateway,
) -> None:
    answer = await replaying.get("/quotes/EURUSD")
    assert (answer.status, answer.json["reason"], answer.headers["Retry-After"]) == (503, "NO_QUOTE", "1")
    assert "sim has no quote for EURUSD" in answer.json["message"]
    placed = await replaying.place(symbol="EURUSD")
    assert placed.status == 202
    [accepted, *_] = (await replaying.get(f"/orders/{placed.json['orderId']}/events")).json["events"]
    assert "quote" not in accepted["data"]
    wide = await do_order(replaying, "k", instrument="EURUSD", risk_constraints={"max_spread": 1})
    assert error(wide) == (503, "BROKER_DOWN")


async def test_a_stale_quote_is_none(tmp_path: Path) -> None:
    (tmp_path / "quotes.csv").write_text(RECORDED)
    settings = {
        "VENUE_QUOTES_SIM": f"file:{tmp_path / 'quotes.csv'}",
        "VENUE_QUOTES_START_SIM": (datetime.now(UTC) - timedelta(seconds=10)).isoformat(),
    }
    async with running_gateway(tmp_path, **settings) as gateway:
        answer = await gateway.get("/quotes/BTC")
        assert (answer.status, answer.json["reason"]) == (503, "NO_QUOTE")
        assert gateway.engine.metrics.registry.get_sample_value("quotes_missing_total", {"venue": "sim"}) == 1


async def test_a_venue_without_quotes_and_a_venue_by_name(tmp_path: Path) -> None:
    settings = {"SOR_VENUES": "a,b", "VENUE_URL_A": "null:", "VENUE_URL_B": "null:", "VENUE_QUOTES_A": "none"}
    async with running_gateway(tmp_path, **settings) as gateway:
        assert (await gateway.get("/quotes/BTC")).json["reason"] == "NO_QUOTE"
        assert (await gateway.get("/quotes/BTC?venue=b")).json["bid"] == 1
        wrong = await gateway.get("/quotes/BTC?venue=c")
        assert (wrong.status, wrong.json["field"]) == (422, "venue")
        assert "must be one of a, b" in wrong.json["message"]


@pytest.mark.parametrize(
    ("symbol", "reason", "message"),
    [
        ("usdjpy", "UNKNOWN_SYMBOL", "did you mean USDJPY?"),
        ("BTC%2FUSD", "UNKNOWN_SYMBOL", "is not a listed instrument"),
        ("a%20b", "VALIDATION_ERROR", "must match"),
        ("X" * 300, "VALIDATION_ERROR", "must match"),
    ],
)
async def test_the_quote_of_an_unknown_symbol_is_422(
    embedded: RunningGateway, symbol: str, reason: str, message: str
) -> None:
    answer = await embedded.get(f"/quotes/{symbol}")
    assert (answer.status, answer.json["reason"], answer.json["field"]) == (422, reason, "symbol")
    assert message in answer.json["message"]


async def test_a_symbol_with_a_slash_has_a_quote(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SWITCHYARD_UNLISTED_SYMBOLS="allow") as gateway:
        assert (await gateway.get("/quotes/BTC%2FUSD")).json["symbol"] == "BTC/USD"


@pytest.mark.parametrize("path", ["/quotes/USDJPY", "/instruments", "/venues"])
async def test_the_market_needs_a_token_and_rejects_unknown_parameters(embedded: RunningGateway, path: str) -> None:
    assert (await embedded.get(path, account=None)).status == 401
    answer = await embedded.get(f"{path}?symbl=X")
    assert (answer.status, answer.json["field"]) == (422, "symbl")


async def test_instruments_lists_the_catalogue_by_symbol_in_pages(tmp_path: Path) -> None:
    config = tmp_path / "switchyard.yaml"
    config.write_text("instruments: {AAA: {kind: future, multiplier: 12.5, tick: 0.25}}\n")
    settings = {"SWITCHYARD_CONFIG": str(config), "SOR_VENUES": "sim,other", "SOR_SYMBOL_ROUTES": "BTC=other"}
    async with running_gateway(tmp_path, **settings) as gateway:
        listed = (await gateway.get("/instruments")).json
        assert listed["nextCursor"] is None
        by_symbol = {each["symbol"]: each for each in listed["instruments"]}
        assert list(by_symbol) == sorted({"AAA", *DEFAULT_INSTRUMENTS})
        assert by_symbol["AAA"]["multiplier"] == 12.5
        assert (by_symbol["BTC"]["venue"], by_symbol["AAA"]["venue"]) == ("other", "sim")
        paged: list[str] = []
        cursor = ""
        while True:
            page = (await gateway.get(f"/instruments?limit=7{cursor}")).json
            paged += [each["symbol"] for each in page["instruments"]]
            if page["nextCursor"] is None:
                break
            cursor = f"&cursor={page['nextCursor']}"
        assert paged == list(by_symbol)
        assert (await gateway.get("/instruments?limit=0")).status == 422
        assert (await gateway.get("/instruments?cursor=after:ZZZ")).json == {"instruments": [], "nextCursor": None}


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_both_clients_read_quotes_and_instruments(kind: str, replaying: RunningGateway) -> None:
    quick = Retry(attempts_max=2, first_seconds=0.001, seconds_max=0.01)
    client: AsyncClient
    async with make_client(kind, replaying.url, replaying.token("demo"), retry=quick) as client:
        quote = await client.quote("BTC", venue="sim")
        assert (quote.bid, quote.ask, quote.symbol) == (Decimal(63985), Decimal("63990.5"), "BTC")
        listed = {instrument.symbol: instrument async for instrument in client.instruments()}
        assert listed["USDJPY"].tick == DEFAULT_INSTRUMENTS["USDJPY"].tick
        assert listed["USDJPY"].venue == "sim"
        with pytest.raises(ApiError) as caught:
            await client.quote("EURUSD")
        assert (caught.value.status, caught.value.reason) == (503, "NO_QUOTE")


async def run(gateway: RunningGateway, *arguments: str) -> str:
    done = await asyncio.to_thread(run_command, *arguments, "--url", gateway.url, JWT_HS256_SECRET=SECRET)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_the_commands_show_tables_of_80_columns(replaying: RunningGateway) -> None:
    lines = (await run(replaying, "instruments")).splitlines()
    assert len(lines) == len(DEFAULT_INSTRUMENTS) + 1
    assert lines[0].split()[:2] == ["Symbol", "Kind"]
    assert max(map(len, lines)) <= 80
    [btc] = [line.split() for line in lines if line.startswith("BTC")]
    assert "0.00000001" in btc
    wide = (await run(replaying, "instruments", "--wide")).splitlines()
    assert "Multiplier" in wide[0]
    assert "Multiplier" not in lines[0]  # no instrument sets it
    quotes = (await run(replaying, "quotes", "BTC", "USDJPY")).splitlines()
    assert quotes[1].split()[:5] == ["BTC", "sim", "63985", "63990.5", "5.5"]
    assert len(quotes) == 3


async def test_the_commands_print_json(replaying: RunningGateway) -> None:
    assert (await run(replaying, "instruments", "--json")).startswith('[{"symbol":"AAPL","kind":"equity"')
    assert '"ageSeconds":' in await run(replaying, "quotes", "BTC", "--json")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("VENUE_QUOTES_SIM", "broker", "must be venue, venue:NAME, none or file:PATH"),
        ("VENUE_QUOTES_SIM", "file:quotes.txt", "ends in .csv or .jsonl"),
        ("VENUE_QUOTES_START_SIM", "2026-01-05T09:00:00", "must be a time with its offset"),
        ("VENUE_QUOTES_POLL_SEC_SIM", "0", "must be between 0.1 and 3600 seconds"),
        ("VENUE_QUOTES_POLL_SEC_SIM", "5", "must be less than SWITCHYARD_QUOTE_AGE_MAX_SEC"),
        ("SWITCHYARD_QUOTE_AGE_MAX_SEC", "x", "must be a number of seconds"),
    ],
)
def test_a_wrong_setting_stops_the_start(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        load_settings({"VENUE_URL_SIM": "http://127.0.0.1:1", name: value})
    assert name in str(caught.value)


async def test_a_recorded_file_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "quotes.csv").write_text(HEAD + "2026-01-05T09:00:00Z,USDJPY,2,1\n")
    with pytest.raises(SettingError, match=r"VENUE_QUOTES_SIM.*line 2: bid: must not be above the ask"):
        async with running_gateway(tmp_path, VENUE_QUOTES_SIM=f"file:{tmp_path / 'quotes.csv'}"):
            pass
