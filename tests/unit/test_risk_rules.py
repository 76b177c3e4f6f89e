"""Every pre-trade rule alone and in combination, by the settings that a user would write."""

from decimal import Decimal
from typing import Any

import pytest

from switchyard.domain.market.instruments import Catalogue, Instrument
from switchyard.domain.risk.checks import RISK_REASONS, RiskLimits, checks_of
from switchyard.settings.risk import risk_of
from tests.support.risk import BTC, a_subject, reasons_of

PASS: list[str] = []
MULTIPLIED = Instrument(symbol="BTC", settle="USD", multiplier=Decimal(50))


def limits_of(settings: str) -> RiskLimits:
    """Read settings, written as `NAME=value NAME=value` without the prefix."""
    pairs = (setting.partition("=")[::2] for setting in settings.split())
    return risk_of(None, {f"RISK_{name}": value for name, value in pairs}, Catalogue())


@pytest.mark.parametrize(
    ("settings", "order", "reasons"),
    [
        # Quantity: the account's own limit goes before the global one, the stricter of account and pair counts.
        ("MAX_QTY=10", {}, PASS),
        ("MAX_QTY=9.99999999", {}, ["RISK_MAX_QTY"]),
        ("MAX_QTY=5 MAX_QTY_BY_ACCOUNT=acctA:100,acctB:500", {}, PASS),
        ("MAX_QTY=5 MAX_QTY_BY_ACCOUNT=acctB:500", {}, ["RISK_MAX_QTY"]),
        ("MAX_QTY=500 MAX_QTY_BY_ACCOUNT=acctA:5", {}, ["RISK_MAX_QTY"]),
        ("MAX_QTY_BY_ACCOUNT=acctA:100 MAX_QTY_BY_ACCOUNT_SYMBOL=acctA|BTC:5,acctA|ETH:20", {}, ["RISK_MAX_QTY"]),
        ("MAX_QTY_BY_ACCOUNT=acctA:5 MAX_QTY_BY_ACCOUNT_SYMBOL=acctA|BTC:100", {}, ["RISK_MAX_QTY"]),
        ("MAX_QTY=5 MAX_QTY_BY_ACCOUNT_SYMBOL=acctA|BTC:100", {}, ["RISK_MAX_QTY"]),
        ("MAX_QTY_BY_ACCOUNT_SYMBOL=acctA|ETH:5,acctB|BTC:5", {}, PASS),
        # Notional: quantity times price times multiplier; a MARKET order at the quote that it would meet.
        ("MAX_NOTIONAL=1000", {}, PASS),
        ("MAX_NOTIONAL=999", {}, ["RISK_MAX_NOTIONAL"]),
        ("MAX_NOTIONAL=1000", {"instrument": MULTIPLIED}, ["RISK_MAX_NOTIONAL"]),
        ("MAX_NOTIONAL=50000", {"instrument": MULTIPLIED}, PASS),
        ("MAX_NOTIONAL=1 MAX_NOTIONAL_BY_ACCOUNT=acctA:1000", {}, PASS),
        ("MAX_NOTIONAL_BY_ACCOUNT=acctA:1000 MAX_NOTIONAL_BY_ACCOUNT_SYMBOL=acctA|BTC:999", {}, ["RISK_MAX_NOTIONAL"]),
        ("MAX_NOTIONAL=1010", {"price": None}, PASS),
        ("MAX_NOTIONAL=1009", {"price": None}, ["RISK_MAX_NOTIONAL"]),
        ("MAX_NOTIONAL=990", {"price": None, "side": "SELL"}, PASS),
        ("MAX_NOTIONAL=989", {"price": None, "side": "SELL"}, ["RISK_MAX_NOTIONAL"]),
        ("MAX_NOTIONAL=1000000", {"price": None, "quote": None}, ["RISK_NO_PRICE"]),
        ("MAX_NOTIONAL_BY_ACCOUNT=acctB:1", {"price": None, "quote": None}, PASS),
        ("MAX_QTY=10", {"price": None, "quote": None}, PASS),  # needs no price
        # A stop order: at its stop price, or at the market where a BUY has passed it already.
        ("MAX_NOTIONAL=1200", {"price": None, "stop_price": Decimal(120)}, PASS),
        ("MAX_NOTIONAL=1199", {"price": None, "stop_price": Decimal(120)}, ["RISK_MAX_NOTIONAL"]),
        ("MAX_NOTIONAL=1009", {"price": None, "stop_price": Decimal(1)}, ["RISK_MAX_NOTIONAL"]),
        ("MAX_NOTIONAL=1200", {"price": None, "stop_price": Decimal(120), "quote": None}, ["RISK_NO_PRICE"]),
        ("MAX_NOTIONAL=800", {"price": None, "stop_price": Decimal(80), "side": "SELL", "quote": None}, PASS),
        ("MAX_NOTIONAL=1000", {"stop_price": Decimal(120)}, PASS),
        ("MIN_PRICE=120", {"price": None, "stop_price": Decimal(120), "quote": None}, PASS),
        ("MIN_PRICE=121", {"price": None, "stop_price": Decimal(120)}, ["RISK_MIN_PRICE"]),
        ("MAX_PRICE=110", {"stop_price": Decimal(120)}, ["RISK_MAX_PRICE"]),
        ("MAX_PRICE=110", {"stop_price": Decimal(80), "price": Decimal(120)}, ["RISK_MAX_PRICE"]),
        # Prices: the strictest of account, symbol and global.
        ("MIN_PRICE=100", {}, PASS),
        ("MIN_PRICE=100.01", {}, ["RISK_MIN_PRICE"]),
        ("MIN_PRICE=1 MIN_PRICE_BY_ACCOUNT=acctA:101,acctB:500", {}, ["RISK_MIN_PRICE"]),
        ("MIN_PRICE=1 MIN_PRICE_BY_SYMBOL=BTC:101,ETH:50", {}, ["RISK_MIN_PRICE"]),
        ("MIN_PRICE=101 MIN_PRICE_BY_ACCOUNT=acctA:1 MIN_PRICE_BY_SYMBOL=BTC:1", {}, ["RISK_MIN_PRICE"]),
        ("MIN_PRICE=99 MIN_PRICE_BY_ACCOUNT=acctA:98 MIN_PRICE_BY_SYMBOL=BTC:97", {}, PASS),
        ("MAX_PRICE=100", {}, PASS),
        ("MAX_PRICE=99.99", {}, ["RISK_MAX_PRICE"]),
        ("MAX_PRICE=1000 MAX_PRICE_BY_ACCOUNT=acctA:99,acctB:20000", {}, ["RISK_MAX_PRICE"]),
        ("MAX_PRICE=1000 MAX_PRICE_BY_SYMBOL=BTC:99,ETH:5000", {}, ["RISK_MAX_PRICE"]),
        ("MAX_PRICE=99 MAX_PRICE_BY_ACCOUNT=acctA:1000", {}, ["RISK_MAX_PRICE"]),
        ("MIN_PRICE=100 MAX_PRICE=100", {}, PASS),
        ("MAX_PRICE=100", {"price": None}, ["RISK_MAX_PRICE"]),
        ("MAX_PRICE=101", {"price": None}, PASS),
        ("MIN_PRICE=100", {"price": None, "side": "SELL"}, ["RISK_MIN_PRICE"]),
        ("MIN_PRICE=1", {"price": None, "quote": None}, ["RISK_NO_PRICE"]),
        # Allowed sets: intersections.
        ("ALLOWED_SYMBOLS_BY_ACCOUNT=acctA:BTC|ETH,acctB:BTC", {}, PASS),
        ("ALLOWED_SYMBOLS_BY_ACCOUNT=acctA:XRP;ETH", {}, ["RISK_SYMBOL_NOT_ALLOWED"]),
        ("ALLOWED_SYMBOLS_BY_ACCOUNT=acctB:ETH", {}, PASS),
        ("ALLOWED_SIDES=BUY|SELL", {}, PASS),
        ("ALLOWED_SIDES=SELL", {}, ["RISK_SIDE_NOT_ALLOWED"]),
        ("ALLOWED_SIDES_BY_ACCOUNT=acctA:SELL,acctB:BUY", {}, ["RISK_SIDE_NOT_ALLOWED"]),
        ("ALLOWED_SIDES_BY_SYMBOL=BTC:BUY", {}, PASS),
        ("ALLOWED_SIDES_BY_SYMBOL=BTC:BUY", {"side": "SELL"}, ["RISK_SIDE_NOT_ALLOWED"]),
        ("ALLOWED_SIDES=BUY ALLOWED_SIDES_BY_ACCOUNT=acctA:SELL", {}, ["RISK_SIDE_NOT_ALLOWED"]),
        ("ALLOWED_SIDES=BUY ALLOWED_SIDES_BY_ACCOUNT=acctA:SELL", {"side": "SELL"}, ["RISK_SIDE_NOT_ALLOWED"]),
        ("ALLOWED_TYPES=LIMIT|MARKET", {"price": None}, PASS),
        ("ALLOWED_TYPES=LIMIT", {"price": None}, ["RISK_TYPE_NOT_ALLOWED"]),
        ("ALLOWED_TYPES_BY_ACCOUNT=acctA:LIMIT|MARKET,acctB:LIMIT", {"price": None}, PASS),
        ("ALLOWED_TYPES_BY_ACCOUNT=acctA:MARKET", {}, ["RISK_TYPE_NOT_ALLOWED"]),
        ("ALLOWED_TYPES_BY_SYMBOL=BTC:LIMIT", {"price": None}, ["RISK_TYPE_NOT_ALLOWED"]),
        ("ALLOWED_TYPES=LIMIT ALLOWED_TYPES_BY_SYMBOL=BTC:MARKET", {}, ["RISK_TYPE_NOT_ALLOWED"]),
        ("RESTRICTED_SYMBOLS=ETH|XRP", {}, PASS),
        ("RESTRICTED_SYMBOLS=ETH|BTC", {}, ["RESTRICTED"]),
        # Several at once: each check fails for itself, in a fixed order.
        ("MAX_QTY=1 MAX_NOTIONAL=1 MAX_PRICE=1", {}, ["RISK_MAX_QTY", "RISK_MAX_PRICE", "RISK_MAX_NOTIONAL"]),
        (
            "RESTRICTED_SYMBOLS=BTC ALLOWED_SIDES=SELL ALLOWED_TYPES=MARKET MIN_PRICE=1000",
            {},
            ["RESTRICTED", "RISK_SIDE_NOT_ALLOWED", "RISK_TYPE_NOT_ALLOWED", "RISK_MIN_PRICE"],
        ),
        ("MAX_QTY=1 MAX_NOTIONAL=1", {"price": None, "quote": None}, ["RISK_MAX_QTY", "RISK_NO_PRICE"]),
    ],
)
def test_a_rule_passes_or_rejects(settings: str, order: dict[str, Any], reasons: list[str]) -> None:
    assert reasons_of(limits_of(settings), a_subject(**order)) == reasons


@pytest.mark.parametrize(
    ("instrument", "order", "reasons"),
    [
        ({}, {}, PASS),
        ({"min_qty": 10}, {}, PASS),
        ({"min_qty": 11}, {}, ["MIN_ORDER_SIZE"]),
        ({"max_qty": 10}, {}, PASS),
        ({"max_qty": 9}, {}, ["MAX_ORDER_SIZE"]),
        ({"collar_percent": 1}, {"price": Decimal(101)}, PASS),
        ({"collar_percent": 1}, {"price": Decimal(99)}, PASS),
        ({"collar_percent": 1}, {"price": Decimal("101.01")}, ["COLLAR"]),
        ({"collar_percent": 1}, {"price": Decimal("98.99")}, ["COLLAR"]),
        ({"collar_percent": 1}, {"price": Decimal("98.99"), "side": "SELL"}, ["COLLAR"]),
        ({"collar_percent": 1}, {"price": None}, PASS),
        ({"collar_percent": 1}, {"price": None, "quote": None}, ["COLLAR_NO_QUOTE"]),
        ({"collar_percent": 1}, {"quote": None}, ["COLLAR_NO_QUOTE"]),
        # A stop order that waits may be far from the market; its limit price must be near its stop price.
        ({"collar_percent": 1}, {"price": None, "stop_price": Decimal(150)}, PASS),
        ({"collar_percent": 1}, {"price": Decimal(151), "stop_price": Decimal(150)}, PASS),
        ({"collar_percent": 1}, {"price": Decimal(152), "stop_price": Decimal(150)}, ["COLLAR"]),
        # One that is triggered at once must be near the market.
        ({"collar_percent": 1}, {"price": None, "stop_price": Decimal(99)}, PASS),
        ({"collar_percent": 1}, {"price": None, "stop_price": Decimal(90)}, ["COLLAR"]),
        ({"collar_percent": 1}, {"price": None, "stop_price": Decimal(150), "side": "SELL"}, ["COLLAR"]),
        ({"collar_percent": 1}, {"price": Decimal(105), "stop_price": Decimal(99)}, ["COLLAR"]),
        ({"collar_percent": 1}, {"price": None, "stop_price": Decimal(150), "quote": None}, ["COLLAR_NO_QUOTE"]),
        ({"min_qty": 11, "max_qty": 9}, {"quote": None}, ["MAX_ORDER_SIZE", "MIN_ORDER_SIZE"]),
    ],
)
def test_a_guard_of_the_instrument_passes_or_rejects(
    instrument: dict[str, Any], order: dict[str, Any], reasons: list[str]
) -> None:
    amounts: dict[str, Any] = {name: Decimal(value) for name, value in instrument.items()}
    assert reasons_of(RiskLimits(), a_subject(instrument=Instrument(symbol="BTC", **amounts), **order)) == reasons


def test_a_detail_names_the_setting_that_binds_and_both_amounts() -> None:
    limits = limits_of("MAX_QTY=500 MAX_QTY_BY_ACCOUNT_SYMBOL=acctA|BTC:5")
    [violation] = [check.judge(a_subject()) for check in checks_of(limits) if check.name == "RISK_MAX_QTY"]
    assert violation is not None
    assert violation.detail == "qty 10 is above 5 (RISK_MAX_QTY_BY_ACCOUNT_SYMBOL)"


def test_every_check_is_named_by_a_reason_of_the_table() -> None:
    limits = limits_of(
        "MAX_QTY=1 MAX_NOTIONAL=1 MIN_PRICE=1 MAX_PRICE=1 ALLOWED_SYMBOLS_BY_ACCOUNT=a:BTC ALLOWED_SIDES=BUY "
        "ALLOWED_TYPES=LIMIT RESTRICTED_SYMBOLS=BTC"
    )
    names = [check.name for check in checks_of(limits)]
    assert len(names) == len(set(names)) == 11
    assert set(names) <= set(RISK_REASONS)
    assert names[-1] == "MIN_ORDER_SIZE"  # a reducing order is exempt, and must have passed all others
    assert BTC.settlement == "USD"
