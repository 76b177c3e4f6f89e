"""`POST /positions/{symbol}/close`: one order that can only reduce the position."""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from switchyard.client import ApiError, AsyncClient
from tests.support.gateway import CheckedResponse, RunningGateway, running_gateway
from tests.support.polling import until

NOT_FOUND = (404, {"status": "NOT_FOUND", "reason": "NOT_FOUND"})


async def close(
    gateway: RunningGateway, symbol: str = "USDJPY", key: str | None = None, account: str = "demo", **body: Any
) -> CheckedResponse:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await gateway.request("POST", f"/positions/{symbol}/close", account=account, body=body, headers=headers)


async def hold(gateway: RunningGateway, side: str = "BUY", qty: int = 1000) -> None:
    """Bring the account into a position."""
    placed = await gateway.place(side=side, qty=qty)
    await gateway.until_status(placed.json["orderId"], "FILLED")


async def test_a_close_sells_the_whole_position_and_a_repeat_gets_the_same_order(gateway: RunningGateway) -> None:
    await hold(gateway)

    first = await close(gateway, key="flat")
    order = await gateway.until_status(first.json["orderId"], "FILLED")
    again = await close(gateway, key="flat")

    assert (first.status, first.json["status"]) == (202, "ACCEPTED")
    assert (order["side"], order["type"], order["qty"], order["reduceOnly"]) == ("SELL", "MARKET", 1000, True)
    assert (again.status, again.json) == (202, first.json)
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    other = await close(gateway, key="flat", qty=1)
    assert (other.status, other.json["reason"]) == (409, "IDEMPOTENCY_CONFLICT")
    gone = await close(gateway, key="another")
    assert (gone.status, gone.json) == NOT_FOUND


async def test_an_open_order_of_the_same_side_is_not_counted_twice(embedded: RunningGateway) -> None:
    await hold(embedded)
    await embedded.place(side="SELL", qty=1000, type="LIMIT", price=500)

    answer = await close(embedded, key="key")

    assert (answer.status, answer.json["reason"]) == (409, "POSITION_CLOSING")
    assert "open SELL orders have 1000 left to fill, so at most 0 can be closed" in answer.json["message"]
    await embedded.request("POST", "/orders/cancel-all", body={})

    async def is_placed() -> bool:
        return (await close(embedded, key="key")).status == 202

    await until(is_placed, lambda: "the close that was answered 409 took its key")


async def test_another_account_cannot_be_told_from_a_missing_position(embedded: RunningGateway) -> None:
    await hold(embedded)
    answers = [
        await close(embedded, account="other"),
        await close(embedded, account="other", accountId="demo"),
        await close(embedded, "EURUSD"),
        await embedded.get("/positions?accountId=demo", "other"),
        await embedded.get("/account?accountId=demo", "other"),
        await embedded.request("POST", "/orders/cancel-all", account="other", body={"accountId": "demo"}),
    ]
    assert {answer.body for answer in answers} == {b'{"status":"NOT_FOUND","reason":"NOT_FOUND"}'}
    assert (await close(embedded, accountId="demo")).status == 202


async def test_a_key_derived_from_the_content_finds_the_first_close(embedded: RunningGateway) -> None:
    await hold(embedded)
    derive = {"Idempotency-Derive": "true"}

    async def derived(**body: Any) -> CheckedResponse:
        return await embedded.request("POST", "/positions/USDJPY/close", body=body, headers=derive)

    first = await derived(qty=400)
    await embedded.until_status(first.json["orderId"], "FILLED")
    again = await derived(qty=400.0)
    rest = await derived()

    assert (first.status, again.status, rest.status) == (202, 200, 202)
    assert (again.json["status"], again.json["orderId"]) == ("duplicate_detected", first.json["orderId"])
    assert again.json["originalRequestId"] == first.json["requestId"]
    assert again.headers["Idempotent-Replayed"] == "true"
    assert (await embedded.order(rest.json["orderId"]))["qty"] == 600


async def test_an_equal_close_without_a_key_is_a_duplicate_of_the_first(gateway: RunningGateway) -> None:
    await hold(gateway)
    part = await close(gateway, qty=400)
    await gateway.until_status(part.json["orderId"], "FILLED")
    again = await close(gateway, qty=400)
    assert (part.status, again.status) == (202, 200)
    assert (again.json["status"], again.json["orderId"]) == ("duplicate_detected", part.json["orderId"])
    assert again.json["originalRequestId"] == part.json["requestId"]
    assert again.headers["Idempotent-Replayed"] == "true"

    # The rest is closed by another request, and then there is nothing left to close.
    rest = await close(gateway)
    order = await gateway.until_status(rest.json["orderId"], "FILLED")
    repeats = await asyncio.gather(close(gateway), close(gateway))
    assert (rest.status, order["qty"]) == (202, 600)
    assert [(repeat.status, repeat.json["orderId"]) for repeat in repeats] == [(200, rest.json["orderId"])] * 2

    # A key, or a header that says so, makes it a close of its own.
    await hold(gateway)
    async with asyncio.TaskGroup() as group:
        keyed = group.create_task(close(gateway, key="own", qty=400))
        headers = {"Idempotency-Derive": "false"}
        path = "/positions/USDJPY/close"
        plain = group.create_task(gateway.request("POST", path, body={"qty": 400}, headers=headers))
    assert len({part.json["orderId"], keyed.result().json["orderId"], plain.result().json["orderId"]}) == 3


async def test_a_position_that_was_opened_again_is_closed_again(gateway: RunningGateway) -> None:
    await hold(gateway)
    first = await close(gateway)
    await gateway.until_status(first.json["orderId"], "FILLED")
    await hold(gateway, side="SELL")
    second = await close(gateway)
    order = await gateway.until_status(second.json["orderId"], "FILLED")
    assert (second.status, order["side"], order["qty"]) == (202, "BUY", 1000)
    again = await close(gateway)
    assert (again.status, again.json["orderId"]) == (200, second.json["orderId"])


async def test_a_close_that_ended_without_a_fill_can_be_repeated(embedded: RunningGateway) -> None:
    await hold(embedded)
    terms: dict[str, Any] = {"qty": 400, "type": "LIMIT", "price": 500, "timeInForce": "IOC"}
    first = await close(embedded, **terms)
    await embedded.until_status(first.json["orderId"], "CANCELED", "EXPIRED")
    second = await close(embedded, **terms)
    assert (second.status, second.json["orderId"] != first.json["orderId"]) == (202, True)


async def test_without_derived_keys_every_close_without_a_key_is_a_new_one(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, IDEMPOTENCY_ENABLED="false") as gateway:
        await hold(gateway)
        closes = [await close(gateway, qty=400) for _ in range(2)]
        assert [answer.status for answer in closes] == [202, 202]


async def test_risk_rules_bind_a_close_but_limits_on_exposure_do_not(tmp_path: Path) -> None:
    limits = {"RISK_MAX_OPEN_ORDERS": "1", "RISK_MAX_QTY": "1000"}
    async with running_gateway(tmp_path, **limits) as gateway:
        await hold(gateway)
        await hold(gateway)
        await gateway.place(type="LIMIT", price=1)  # the one open order that is allowed

        rejected = await close(gateway, key="too-much")
        again = await close(gateway, key="too-much")
        placed = await close(gateway, qty=1000)

        assert (rejected.status, rejected.json["reason"]) == (422, "RISK_MAX_QTY")
        assert (await gateway.order(rejected.json["orderId"]))["status"] == "REJECTED"
        assert (again.json, again.headers["Idempotent-Replayed"]) == (rejected.json, "true")
        assert placed.status == 202


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"qty": 0}, "qty"),
        ({"qty": "1"}, "qty"),
        ({"qty": 0.5}, "qty"),
        ({"type": "LIMIT"}, "price"),
        ({"type": "STOP"}, "type"),
        ({"price": 150}, "price"),
        ({"side": "SELL"}, "side"),
        ({"strategy": "A b"}, "strategy"),
    ],
)
async def test_a_wrong_field_is_named(embedded: RunningGateway, body: dict[str, Any], field: str) -> None:
    answer = await close(embedded, **body)
    assert (answer.status, answer.json["field"]) == (422, field)


async def test_the_client_closes_and_explains(embedded: RunningGateway) -> None:
    async with AsyncClient(embedded.url, embedded.token()) as client:
        with pytest.raises(ApiError, match="NOT_FOUND"):
            await client.close_position("USDJPY")
        await hold(embedded, "SELL")
        [position] = [position async for position in client.positions()]
        assert (position.symbol, position.qty) == ("USDJPY", Decimal(-1000))
        placed = await client.close_position("USDJPY", idempotency_key="mine")
        await embedded.until_status(placed.order_id, "FILLED")
        assert (await client.close_position("USDJPY", idempotency_key="mine")).replayed
        explained = await client.explain(placed.order_id)
        checks = ", ".join(check.check for check in (await client.dry_run("USDJPY", "BUY", 1000)).checks)
        assert f"the checks of such an order today: {checks}" in [step.text for step in explained.steps]
        assert explained.lines[1] == "BUY 1000 USDJPY at the market, immediate or cancel, to close a position"
        assert explained.lines[-1].startswith("Now: FILLED, it has ended; 1000 of 1000 filled at an average of ")
        view = await client.account()
        assert (view.positions, view.orders, view.exposure.open_orders) == ((), (), 0)
        [flat] = [position async for position in client.positions(flat=True)]
        assert (flat.qty, flat.average_price) == (Decimal(0), None)
    answer = await embedded.get(f"/orders/{placed.order_id}/explain", "other")
    assert (answer.status, answer.json) == NOT_FOUND
