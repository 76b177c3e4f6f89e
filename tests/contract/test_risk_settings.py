"""The risk settings: by variable and by file, with names that contain separators; a malformed one is named."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from switchyard.domain.errors import SettingError
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.risk.checks import RiskLimits
from switchyard.settings import load_settings
from switchyard.settings.risk import RISK_SETTINGS, risk_of

FULL_TEXT = {
    "RISK_MAX_QTY": "1000",
    "RISK_MAX_NOTIONAL": "1000000",
    "RISK_MIN_PRICE": "0.01",
    "RISK_MAX_PRICE": "99999.5",
    "RISK_MAX_QTY_BY_ACCOUNT": "acctA:100,acctB:500",
    "RISK_MAX_NOTIONAL_BY_ACCOUNT": "acctA:100000, acctB:500000",
    "RISK_MAX_QTY_BY_ACCOUNT_SYMBOL": "acctA|BTC:5,acctA|ETH:20",
    "RISK_MAX_NOTIONAL_BY_ACCOUNT_SYMBOL": "acctA|BTC:10000,acctA|ETH:50000",
    "RISK_MIN_PRICE_BY_ACCOUNT": "acctA:100,acctB:500",
    "RISK_MAX_PRICE_BY_ACCOUNT": "acctA:10000,acctB:20000",
    "RISK_MIN_PRICE_BY_SYMBOL": "BTC:100,ETH:50",
    "RISK_MAX_PRICE_BY_SYMBOL": "BTC:100000,ETH:5000",
    "RISK_ALLOWED_SYMBOLS_BY_ACCOUNT": "acctA:BTC|ETH,acctB:BTC;XRP",
    "RISK_ALLOWED_SIDES": "BUY|SELL",
    "RISK_ALLOWED_SIDES_BY_ACCOUNT": "acctA:BUY|SELL,acctB:BUY",
    "RISK_ALLOWED_SIDES_BY_SYMBOL": "BTC:BUY",
    "RISK_ALLOWED_TYPES": "LIMIT|MARKET",
    "RISK_ALLOWED_TYPES_BY_ACCOUNT": "acctA:LIMIT|MARKET,acctB:LIMIT",
    "RISK_ALLOWED_TYPES_BY_SYMBOL": "BTC:LIMIT",
    "RISK_RATE_PER_SEC": "10",
    "RISK_RATE_BURST": "20",
    "RISK_RESTRICTED_SYMBOLS": "AAPL|MSFT",
    "RISK_DUPLICATE_WINDOW_SEC": "1.5",
    "RISK_MAX_OPEN_ORDERS": "50",
    "RISK_MAX_OPEN_ORDERS_BY_ACCOUNT": "acctA:100,acctB:500",
    "RISK_MAX_OPEN_ORDERS_BY_ACCOUNT_SYMBOL": "acctA|BTC:5,acctA|ETH:20",
    "RISK_MAX_OPEN_NOTIONAL": "50",
    "RISK_MAX_OPEN_NOTIONAL_BY_ACCOUNT": "acctA:100,acctB:500",
    "RISK_MAX_OPEN_NOTIONAL_BY_ACCOUNT_SYMBOL": "acctA|BTC:5,acctA|ETH:20",
    "RISK_MAX_POSITION": "50",
    "RISK_MAX_POSITION_BY_ACCOUNT": "acctA:100,acctB:500",
    "RISK_MAX_POSITION_BY_ACCOUNT_SYMBOL": "acctA|BTC:5,acctA|ETH:20",
    "RISK_MAX_GROSS_EXPOSURE": "50",
    "RISK_MAX_GROSS_EXPOSURE_BY_ACCOUNT": "acctA:100,acctB:500",
    "RISK_MAX_GROSS_EXPOSURE_BY_ACCOUNT_SYMBOL": "acctA|BTC:5,acctA|ETH:20",
    "RISK_MAX_DAILY_LOSS": "50",
    "RISK_MAX_DAILY_LOSS_BY_ACCOUNT": "acctA:100,acctB:500",
    "RISK_MAX_ORDERS_PER_WINDOW": "50",
    "RISK_MAX_ORDERS_PER_WINDOW_BY_ACCOUNT": "acctA:100,acctB:500",
    "RISK_ORDERS_WINDOW_SEC": "2.5",
    "RISK_TRADING_DAY_ZONE": "America/New_York",
    "RISK_TRADING_DAY_ROLL": "17:00",
    "RISK_STRATEGY_FILLS_MAX": "100",
    "RISK_STRATEGY_FILLS_SEC": "30",
}
FULL_FILE = """
risk:
  max_qty: 1000
  max_notional: 1000000
  min_price: 0.01
  max_price: 99999.5
  max_qty_by_account: {acctA: 100, acctB: 500}
  max_notional_by_account: {acctA: 100000, acctB: "500000"}
  max_qty_by_account_symbol: {acctA: {BTC: 5, ETH: 20}}
  max_notional_by_account_symbol: "acctA|BTC:10000,acctA|ETH:50000"
  min_price_by_account: {acctA: 100, acctB: 500}
  max_price_by_account: {acctA: 10000, acctB: 20000}
  min_price_by_symbol: {BTC: 100, ETH: 50}
  max_price_by_symbol: {BTC: 100000, ETH: 5000}
  allowed_symbols_by_account: {acctA: [BTC, ETH], acctB: BTC|XRP}
  allowed_sides: [BUY, SELL]
  allowed_sides_by_account: {acctA: [BUY, SELL], acctB: BUY}
  allowed_sides_by_symbol: {BTC: BUY}
  allowed_types: LIMIT|MARKET
  allowed_types_by_account: {acctA: [LIMIT, MARKET], acctB: [LIMIT]}
  allowed_types_by_symbol: {BTC: [LIMIT]}
  rate_per_sec: 10
  rate_burst: 20
  restricted_symbols: [AAPL, MSFT]
  duplicate_window_sec: 1.5
  max_open_orders: 50
  max_open_orders_by_account: {acctA: 100, acctB: 500}
  max_open_orders_by_account_symbol: {acctA: {BTC: 5, ETH: 20}}
  max_open_notional: 50
  max_open_notional_by_account: {acctA: 100, acctB: 500}
  max_open_notional_by_account_symbol: {acctA: {BTC: 5, ETH: 20}}
  max_position: 50
  max_position_by_account: {acctA: 100, acctB: 500}
  max_position_by_account_symbol: {acctA: {BTC: 5, ETH: 20}}
  max_gross_exposure: 50
  max_gross_exposure_by_account: {acctA: 100, acctB: 500}
  max_gross_exposure_by_account_symbol: {acctA: {BTC: 5, ETH: 20}}
  max_daily_loss: 50
  max_daily_loss_by_account: {acctA: 100, acctB: 500}
  max_orders_per_window: 50
  max_orders_per_window_by_account: {acctA: 100, acctB: 500}
  orders_window_sec: 2.5
  trading_day_zone: America/New_York
  trading_day_roll: "17:00"
  strategy_fills_max: 100
  strategy_fills_sec: 30
"""


def read(section: Any = None, **environment: str) -> RiskLimits:
    return risk_of(section, environment, Catalogue())


def test_every_setting_has_the_same_meaning_as_variable_and_in_the_file(tmp_path: Path) -> None:
    assert set(FULL_TEXT) == {setting.name for setting in RISK_SETTINGS}
    (tmp_path / "switchyard.yaml").write_text(FULL_FILE)
    from_file = load_settings({"SWITCHYARD_CONFIG": str(tmp_path / "switchyard.yaml"), "HOME": "/nowhere"}).risk
    from_text = load_settings({**FULL_TEXT, "HOME": "/nowhere"}).risk
    assert from_file == from_text
    assert from_text.max_qty_by_account_symbol == {("acctA", "BTC"): 5, ("acctA", "ETH"): 20}
    assert from_text.allowed_symbols_by_account == {"acctA": {"BTC", "ETH"}, "acctB": {"BTC", "XRP"}}
    assert (from_text.min_price, from_text.rate_burst) == (Decimal("0.01"), 20)
    assert from_text.stateful.max_position_by_account_symbol == {("acctA", "BTC"): 5, ("acctA", "ETH"): 20}
    assert (str(from_text.stateful.trading_day_zone), from_text.strategy_fills_max) == ("America/New_York", 100)


def test_a_variable_goes_before_the_file() -> None:
    assert read({"max_qty": 5, "max_price": 7}, RISK_MAX_QTY="6") == RiskLimits(
        max_qty=Decimal(6), max_price=Decimal(7)
    )


def test_nothing_is_limited_by_default() -> None:
    assert read() == RiskLimits()


def test_separators_in_an_account_are_percent_encoded_in_a_variable_and_plain_in_the_file() -> None:
    encoded = read(RISK_MAX_QTY_BY_ACCOUNT="desk%3Aa%7Cb%2Cc%3Bd%25:5", RISK_MAX_QTY_BY_ACCOUNT_SYMBOL="a%7Cb|BTC:1")
    assert encoded.max_qty_by_account == {"desk:a|b,c;d%": Decimal(5)}
    assert encoded.max_qty_by_account_symbol == {("a|b", "BTC"): Decimal(1)}
    plain = read({"max_qty_by_account": {"desk:a|b,c;d%": 5}, "max_qty_by_account_symbol": {"a|b": {"BTC": 1}}})
    assert plain == encoded


def test_the_burst_is_the_rate_of_a_second_by_default() -> None:
    assert read(RISK_RATE_PER_SEC="2.5").burst == 3
    assert read(RISK_RATE_PER_SEC="0.1").burst == 1
    assert read(RISK_RATE_PER_SEC="10", RISK_RATE_BURST="20").burst == 20


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MAX_QTY", "", "must be a number, not ''"),
        ("MAX_QTY", "0", "must be above 0, not '0'"),
        ("MAX_QTY", "-1", "must be between 0 and 10^15"),
        ("MAX_QTY", "NaN", "must be between 0 and 10^15"),
        ("MAX_QTY", "10,5", "must be a number"),
        ("MAX_QTY_BY_ACCOUNT", "acctA:100,acctB", "entry 2 ('acctB') must be ACCOUNT:VALUE, as in acctA:100,acctB:500"),
        ("MAX_QTY_BY_ACCOUNT", "acctA:100,", "entry 2 ('') must be ACCOUNT:VALUE"),
        (
            "MAX_QTY_BY_ACCOUNT",
            "a:b:100",
            "entry 1 ('a:b:100') must be ACCOUNT:VALUE, as in acctA:100,acctB:500 (write :",
        ),
        ("MAX_QTY_BY_ACCOUNT", "acctA:1,acctB:x", "entry 2 ('acctB:x'): must be a number; example: acctA:100"),
        ("MAX_QTY_BY_ACCOUNT", "acctA:1,acctA:2", "entry 2 ('acctA:2'): is a second rule for the same name"),
        ("MAX_QTY_BY_ACCOUNT", ":5", "entry 1 (':5'): '' is not an account id"),
        ("MAX_QTY_BY_ACCOUNT", "a%zz:5", "entry 1 ('a%zz:5'): 'a%zz' has a % that does not begin an escape"),
        ("MAX_QTY_BY_ACCOUNT", "a%FF:5", "entry 1 ('a%FF:5'): "),
        ("MAX_QTY_BY_ACCOUNT_SYMBOL", "acctA:5", "entry 1 ('acctA:5') must be ACCOUNT|SYMBOL:VALUE, as in acctA|BTC:5"),
        ("MAX_QTY_BY_ACCOUNT_SYMBOL", "a|BTC|ETH:5", "entry 1 ('a|BTC|ETH:5') must be ACCOUNT|SYMBOL:VALUE"),
        ("MAX_QTY_BY_ACCOUNT_SYMBOL", "a|btc:5", "entry 1 ('a|btc:5'): 'btc' is not a symbol"),
        ("MAX_QTY_BY_ACCOUNT_SYMBOL", "a|BTX:5", "BTX: is not a listed instrument"),
        ("MIN_PRICE_BY_SYMBOL", "USDJYP:5", "USDJYP: is not a listed instrument: did you mean USDJPY?"),
        ("ALLOWED_SYMBOLS_BY_ACCOUNT", "a:BTC|", "entry 1 ('a:BTC|'): '' is not a symbol"),
        ("ALLOWED_SYMBOLS_BY_ACCOUNT", "a:BTC|DOGE", "DOGE: is not a listed instrument"),
        ("ALLOWED_SIDES", "BUY|SEL", "'SEL' is not one of BUY, SELL; example: BUY|SELL"),
        ("ALLOWED_SIDES", "", "'' is not one of BUY, SELL"),
        ("ALLOWED_SIDES_BY_ACCOUNT", "acctA:HOLD", "entry 1 ('acctA:HOLD'): 'HOLD' is not one of BUY, SELL"),
        ("ALLOWED_TYPES_BY_SYMBOL", "BTC:limit", "entry 1 ('BTC:limit'): 'limit' is not one of LIMIT, MARKET, STOP"),
        ("RATE_PER_SEC", "0.0001", "must be between 0.001 and 100000 orders per second"),
        ("RATE_BURST", "20", "has no effect without RISK_RATE_PER_SEC"),
        ("RESTRICTED_SYMBOLS", "BTC|DOGE", "DOGE: is not a listed instrument"),
        ("DUPLICATE_WINDOW_SEC", "soon", "must be a number of seconds"),
    ],
)
def test_a_malformed_variable_stops_the_start_and_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingError) as error:
        read(**{f"RISK_{name}": value})
    assert str(error.value).startswith(f"RISK_{name}: ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ([], "risk: must be a mapping"),
        ({"max_qyt": 5}, "risk.max_qyt: is not a setting; did you mean risk.max_qty?"),
        ({"max_qty": [5]}, "risk.max_qty: must be a single value, not list"),
        ({"max_qty": True}, "risk.max_qty: must be a single value, not bool"),
        ({"max_qty_by_account": 5}, "risk.max_qty_by_account: must be a mapping, or text as in acctA:100"),
        ({"max_qty_by_account": {"acctA": "x"}}, "risk.max_qty_by_account: entry acctA: must be a number; example: "),
        ({"max_qty_by_account": {"acctA": None}}, "entry acctA: its value must be a number, not None"),
        ({"max_qty_by_account_symbol": {"acctA": 5}}, "entry acctA must be a mapping of symbols"),
        ({"max_qty_by_account_symbol": {"acctA": {"BTX": 5}}}, "risk.max_qty_by_account_symbol: BTX: is not a listed"),
        ({"allowed_sides": 5}, "risk.allowed_sides: must be names separated by |, as in BUY|SELL"),
        ({"allowed_sides": [True]}, "risk.allowed_sides: must be names separated by |"),
        ({"restricted_symbols": ["btc"]}, "risk.restricted_symbols: 'btc' is not a symbol"),
    ],
)
def test_a_malformed_section_stops_the_start_and_is_named(section: Any, message: str) -> None:
    with pytest.raises(SettingError) as error:
        read(section)
    assert message in str(error.value)


def test_a_rule_may_name_an_unlisted_symbol_where_those_may_trade() -> None:
    limits = risk_of(None, {"RISK_MIN_PRICE_BY_SYMBOL": "DOGE:5"}, Catalogue(allows_unlisted=True))
    assert limits.min_price_by_symbol == {"DOGE": Decimal(5)}
