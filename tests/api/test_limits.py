"""Stateful limits over HTTP: checked and reserved with the order, shown by `GET /risk/exposure`."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.do_order import do_order
from tests.support.gateway import RunningGateway, running_gateway

RESTING: dict[str, Any] = {"type": "LIMIT", "price": 100, "timeInForce": "GTC"}
"""A buy far below the market of the paper exchange: 1,000 of it reserve 100,000 JPY."""


async def exposure(gateway: RunningGateway, query: str = "", account: str = "demo") -> Any:
    answer = await gateway.get(f"/risk/exposure{query}", account)
    assert answer.status == 200, answer.body
    return answer.json


async def test_the_order_above_the_open_notional_is_422_and_keeps_its_key(
    tmp_path: Path, engine_settings: dict[str, str]
) -> None:
    async with running_gateway(tmp_path, RISK_MAX_OPEN_NOTIONAL="250000", **engine_settings) as gateway:
        first, second = await gateway.place(**RESTING), await gateway.place(**RESTING)
        third = await gateway.place("third", **RESTING)
        assert [first.status, second.status, third.status] == [202, 202, 422]
        assert third.json == {
            "status": "REJECTED",
            "reason": "LIMIT_OPEN_NOTIONAL",
            "detail": "the open orders of account demo would reserve 300000 JPY, allowed are 250000 JPY "
            "(RISK_MAX_OPEN_NOTIONAL)",
            "orderId": third.json["orderId"],
        }
        await gateway.request("POST", f"/orders/{first.json['orderId']}/cancel")
        await gateway.until_status(first.json["orderId"], "CANCELED")

        assert (await gateway.place("third", **RESTING)).json == third.json
        assert (await gateway.place("fourth", **RESTING)).status == 202
        order = await gateway.order(third.json["orderId"])
        assert (order["status"], order["version"]) == ("REJECTED", 1)


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"RISK_MAX_POSITION": "500", "RISK_MAX_POSITION_BY_ACCOUNT_SYMBOL": "demo|USDJPY:900"}, "RISK_MAX_POSITION"),
        ({"RISK_MAX_POSITION_BY_ACCOUNT": "demo:900"}, "RISK_MAX_POSITION_BY_ACCOUNT"),
        (
            {"RISK_MAX_POSITION": "5000", "RISK_MAX_POSITION_BY_ACCOUNT_SYMBOL": "demo|USDJPY:900"},
            "RISK_MAX_POSITION_BY_ACCOUNT_SYMBOL",
        ),
        (
            {"RISK_MAX_OPEN_NOTIONAL": "1", "RISK_MAX_OPEN_NOTIONAL_BY_ACCOUNT": "demo:50000"},
            "RISK_MAX_OPEN_NOTIONAL_BY_ACCOUNT",
        ),
        ({"RISK_MAX_GROSS_EXPOSURE_BY_ACCOUNT_SYMBOL": "demo|USDJPY:9"}, "RISK_MAX_GROSS_EXPOSURE_BY_ACCOUNT_SYMBOL"),
    ],
)
async def test_a_rejection_names_the_setting_that_has_the_limit(
    tmp_path: Path, limits: dict[str, str], named: str
) -> None:
    async with running_gateway(tmp_path, **limits) as gateway:
        answer = await gateway.place(**RESTING)
        assert answer.status == 422
        assert answer.json["detail"].endswith(f"({named})")


async def test_exposure_shows_totals_and_limits(tmp_path: Path, engine_settings: dict[str, str]) -> None:
    limits = {
        "RISK_MAX_OPEN_ORDERS": "5",
        "RISK_MAX_OPEN_NOTIONAL_BY_ACCOUNT": "demo:1000000",
        "RISK_MAX_POSITION_BY_ACCOUNT_SYMBOL": "demo|USDJPY:3000",
        "RISK_MAX_DAILY_LOSS": "500",
    }
    async with running_gateway(tmp_path, **limits, **engine_settings) as gateway:
        bought = await gateway.place()
        await gateway.until_status(bought.json["orderId"], "FILLED")
        assert (await gateway.place(**RESTING)).status == 202

        shown = await exposure(gateway)

        [currency], [symbol] = shown["currencies"], shown["symbols"]
        cost = (await gateway.order(bought.json["orderId"]))["avgPrice"] * 1000
        assert (shown["accountId"], shown["openOrders"], shown["openOrdersMax"]) == ("demo", 1, 5)
        assert (currency["currency"], currency["openNotional"], currency["openNotionalMax"]) == ("JPY", 100000, 1000000)
        assert (currency["grossExposure"], currency["grossExposureMax"]) == (cost + 100000, None)
        assert (currency["dailyPnl"], currency["dailyLossMax"]) == (0, 500)
        assert (symbol["symbol"], symbol["position"], symbol["positionMax"]) == ("USDJPY", 1000, 3000)
        assert (symbol["openBuyQty"], symbol["openSellQty"], symbol["openOrders"]) == (1000, 0, 1)
        assert (await exposure(gateway, "?symbol=EURUSD"))["symbols"] == []
        assert (await exposure(gateway, account="other"))["openOrders"] == 0
        assert (await gateway.get("/risk/exposure?symbols=EURUSD")).status == 422
        assert (await gateway.get("/risk/exposure", account=None)).status == 401


async def test_an_exit_passes_limits_that_block_new_exposure(tmp_path: Path, engine_settings: dict[str, str]) -> None:
    async with running_gateway(tmp_path, RISK_MAX_POSITION="1000", **engine_settings) as gateway:
        bought = await gateway.place()
        await gateway.until_status(bought.json["orderId"], "FILLED")
        assert (await gateway.place()).json["reason"] == "LIMIT_POSITION"
    tight = {"RISK_MAX_OPEN_ORDERS": "1", "RISK_MAX_OPEN_NOTIONAL": "1", "RISK_MAX_GROSS_EXPOSURE": "1"}
    async with running_gateway(tmp_path, **tight, **engine_settings) as gateway:
        assert (await gateway.place(qty=1, side="SELL", type="LIMIT", price=200)).status == 202
        assert (await gateway.place(qty=499, side="SELL", type="LIMIT", price=200)).status == 202
        crossing = await gateway.place(qty=1000, side="SELL", type="LIMIT", price=200)
        assert (crossing.status, crossing.json["reason"]) == (422, "LIMIT_OPEN_ORDERS")
        sold = await gateway.place(qty=1, side="SELL")
        await gateway.until_status(sold.json["orderId"], "FILLED")
        events = (await gateway.get(f"/orders/{sold.json['orderId']}/events")).json["events"]
        assert events[0]["data"]["order"]["reducing"] is True


async def test_a_position_that_does_not_exist_yet_can_not_be_reduced(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, RISK_MAX_OPEN_ORDERS="1") as gateway:
        assert (await gateway.place(**RESTING)).status == 202
        assert (await gateway.place(side="SELL")).json["reason"] == "LIMIT_OPEN_ORDERS"


async def test_a_market_order_without_a_quote_is_rejected_only_where_a_limit_needs_its_price(tmp_path: Path) -> None:
    venue = {"VENUE_URL_SIM": "http://127.0.0.1:1"}
    async with running_gateway(tmp_path / "a", RISK_MAX_OPEN_NOTIONAL="1000", **venue) as gateway:
        answer = await gateway.place()
        assert (answer.status, answer.json["reason"]) == (422, "LIMIT_NO_PRICE")
    async with running_gateway(tmp_path / "b", RISK_MAX_OPEN_ORDERS="1", **venue) as gateway:
        assert (await gateway.place()).status == 202


async def test_orders_per_window(tmp_path: Path, engine_settings: dict[str, str]) -> None:
    limits = {"RISK_MAX_ORDERS_PER_WINDOW": "3", "RISK_ORDERS_WINDOW_SEC": "3600"}
    async with running_gateway(tmp_path, **limits, **engine_settings) as gateway:
        answers = await asyncio.gather(*(gateway.place(**RESTING) for _ in range(8)))
        assert sorted(answer.status for answer in answers) == [202] * 3 + [422] * 5
        assert {answer.json["reason"] for answer in answers if answer.status == 422} == {"LIMIT_ORDERS_PER_WINDOW"}
        assert (await gateway.place(account="other", **RESTING)).status == 202
        shown = await exposure(gateway)
        assert (shown["windowOrders"], shown["windowOrdersMax"], shown["windowSeconds"]) == (3, 3, 3600)
    async with running_gateway(tmp_path, **limits, **engine_settings) as gateway:
        assert (await gateway.place(**RESTING)).json["reason"] == "LIMIT_ORDERS_PER_WINDOW"


async def test_limits_hold_for_do_order_and_derived_keys(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, RISK_MAX_OPEN_ORDERS="1", IDEMPOTENCY_DERIVE="true") as gateway:
        assert (await gateway.place(**RESTING)).status == 202
        derived = await gateway.place(**RESTING | {"price": 101})
        assert (derived.status, derived.json["reason"]) == (422, "LIMIT_OPEN_ORDERS")
        assert (await gateway.place(**RESTING | {"price": 101})).json == derived.json
        done = await do_order(gateway, "key-1", account="demo")
        assert done.status == 422
        assert "LIMIT_OPEN_ORDERS" in done.body.decode()


async def test_parallel_orders_never_exceed_the_open_notional(tmp_path: Path, engine_settings: dict[str, str]) -> None:
    async with running_gateway(tmp_path, RISK_MAX_OPEN_NOTIONAL="1000000", **engine_settings) as gateway:
        answers = await asyncio.gather(*(gateway.place(f"key-{n}", **RESTING) for n in range(60)))
        assert sorted(answer.status for answer in answers) == [202] * 10 + [422] * 50
        assert (await exposure(gateway))["currencies"][0]["openNotional"] == 1000000


async def test_the_totals_are_the_same_after_a_restart(tmp_path: Path, engine_settings: dict[str, str]) -> None:
    limits = {"RISK_MAX_OPEN_NOTIONAL": "250000"}
    async with running_gateway(tmp_path, **limits, **engine_settings) as gateway:
        bought = await gateway.place()
        await gateway.until_status(bought.json["orderId"], "FILLED")
        for _ in range(2):
            assert (await gateway.place(**RESTING)).status == 202
        before = await exposure(gateway)
    async with running_gateway(tmp_path, **limits, **engine_settings) as gateway:
        after = await exposure(gateway)
        assert before | {"windowOrders": 0} == after | {"windowOrders": 0}
        assert (await gateway.place(**RESTING)).json["reason"] == "LIMIT_OPEN_NOTIONAL"


async def test_a_dry_run_shows_every_limit_and_reserves_nothing(tmp_path: Path) -> None:
    limits = {"RISK_MAX_OPEN_NOTIONAL": "150000", "RISK_MAX_POSITION": "5000", "RISK_MAX_OPEN_ORDERS": "5"}
    async with running_gateway(tmp_path, **limits) as gateway:
        assert (await gateway.place(**RESTING)).status == 202
        body = {"symbol": "USDJPY", "side": "BUY", "qty": 1000, **RESTING}
        answer = await gateway.request("POST", "/orders?dryRun=true", body=body)
        checks = {check["check"]: check for check in answer.json["checks"]}
        assert answer.json["accepted"] is False
        assert checks["LIMIT_OPEN_NOTIONAL"]["reason"] == "LIMIT_OPEN_NOTIONAL"
        assert [checks[name]["passed"] for name in ("LIMIT_POSITION", "LIMIT_OPEN_ORDERS")] == [True, True]
        assert (await exposure(gateway))["openOrders"] == 1
