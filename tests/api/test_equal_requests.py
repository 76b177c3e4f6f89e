"""The same key with a body of the same meaning is a repeat, with another meaning a conflict: on both engines."""

from typing import Any

import pytest

from tests.support.do_order import do_order
from tests.support.gateway import RunningGateway

MARKET: dict[str, Any] = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000}


async def test_defaults_spelt_out_are_the_same_order(gateway: RunningGateway) -> None:
    first = await gateway.place("same", **MARKET)
    spellings: list[dict[str, Any]] = [
        {"tags": []},
        {"price": None},
        {"stopPrice": None},
        {"timeInForce": "IOC"},
        {"timeInForce": None},
        {"clientOrderId": None, "strategy": None},
        {"qty": 1000.0},
    ]
    for spelling in spellings:
        repeat = await gateway.place("same", **MARKET | spelling)
        assert (repeat.status, repeat.json["orderId"]) == (202, first.json["orderId"]), spelling
        assert repeat.headers["Idempotent-Replayed"] == "true"
    orders = (await gateway.get("/orders")).json["orders"]
    assert [order["orderId"] for order in orders] == [first.json["orderId"]]


@pytest.mark.parametrize("difference", [{"timeInForce": "FOK"}, {"tags": ["a"]}, {"strategy": "a"}, {"qty": 2000}])
async def test_another_meaning_is_a_conflict(gateway: RunningGateway, difference: dict[str, Any]) -> None:
    await gateway.place("other", **MARKET)
    answer = await gateway.place("other", **MARKET | difference)
    assert (answer.status, answer.json["reason"]) == (409, "IDEMPOTENCY_CONFLICT")


async def test_a_do_order_may_be_repeated_with_its_defaults_spelt_out(gateway: RunningGateway) -> None:
    first = await do_order(gateway, "k", requested_at="2025-08-24T00:00:00Z")
    assert first.status == 201
    spellings: list[dict[str, Any]] = [
        {"price": None, "tags": [], "time_in_force": "IOC", "risk_constraints": {"max_dd": None}},
        {"requested_at": "2025-08-24T09:00:00+09:00"},
        {"trace_id": "t-2"},
    ]
    for spelling in spellings:
        repeat = await do_order(gateway, "k", **{"requested_at": "2025-08-24T00:00:00Z"} | spelling)
        assert (repeat.status, repeat.json["broker_order_id"]) == (200, first.json["broker_order_id"]), spelling
    conflict = await do_order(gateway, "k", requested_at="2025-08-24T00:00:01Z")
    assert (conflict.status, conflict.json["error"]) == (409, "IDEMPOTENCY_CONFLICT")
