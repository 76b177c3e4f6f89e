"""Amends over HTTP: accepted, repeated, rejected with a stable reason, and shown in the order and its events."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from switchyard.client import AsyncClient
from tests.support.gateway import CheckedResponse, RunningGateway, running_gateway
from tests.support.polling import until
from tests.support.venue_process import VenueProcess


async def resting(gateway: RunningGateway, **changes: Any) -> str:
    order_id = str((await gateway.place(type="LIMIT", price=1, **changes)).json["orderId"])
    await gateway.until_status(order_id, "WORKING")
    return order_id


async def amend(
    gateway: RunningGateway, order_id: str, key: str | None = None, *, account: str = "demo", **body: Any
) -> CheckedResponse:
    headers = {name: body.pop(name) for name in list(body) if "-" in name}
    if key is not None:
        headers["Idempotency-Key"] = key
    return await gateway.request("PATCH", f"/orders/{order_id}", account=account, body=body, headers=headers)


async def until_amended(gateway: RunningGateway, order_id: str, qty: int) -> dict[str, Any]:
    shown: dict[str, Any] = {}

    async def is_amended() -> bool:
        shown.clear()
        shown.update(await gateway.order(order_id))
        return shown["qty"] == qty and "pendingQty" not in shown

    await until(is_amended, lambda: str(shown))
    return shown


async def test_an_amend_changes_the_order_and_its_repeat_tells_the_result(gateway: RunningGateway) -> None:
    order_id = await resting(gateway)
    first = await amend(gateway, order_id, "key", qty=2000, price=2)
    assert (first.status, first.json["orderId"], first.json["status"]) == (202, order_id, "PENDING")
    order = await until_amended(gateway, order_id, 2000)
    assert (order["price"], order["remainingQty"], order["status"]) == (2, 2000, "WORKING")
    again = await amend(gateway, order_id, "key", qty=2000, price=2)
    assert (again.status, again.headers["Idempotent-Replayed"]) == (202, "true")
    assert again.json == first.json | {"status": "AMENDED"}
    events = (await gateway.get(f"/orders/{order_id}/events")).json["events"]
    assert [event["type"] for event in events][-3:] == ["AmendRequested", "OrderSending", "Amended"]
    requested = events[-3]["data"]
    assert (requested["outbox"][0]["amend"]["qty"], requested["idempotency"]["key"]) == (2000, "key")


async def test_every_rejection_has_its_status_and_reason(gateway: RunningGateway) -> None:
    order_id = await resting(gateway)
    await amend(gateway, order_id, "used", qty=1500)
    version = (await until_amended(gateway, order_id, 1500))["version"]
    shown = await gateway.get(f"/orders/{order_id}")
    assert shown.headers["ETag"] == f'"{version}"'
    for expected, arguments in (
        ((404, "NOT_FOUND"), {"key": "k", "qty": 1, "account": "foreign"}),
        ((400, "INVALID_IDEMPOTENCY_KEY"), {"qty": 1}),
        ((400, "VALIDATION_ERROR"), {"key": "k", "qty": 1, "If-Match": "abc"}),
        ((412, "VERSION_MISMATCH"), {"key": "k", "qty": 1, "If-Match": f'"{version - 1}"'}),
        ((409, "IDEMPOTENCY_CONFLICT"), {"key": "used", "qty": 1501}),
        ((422, "NO_CHANGE"), {"key": "k", "qty": 1500, "price": 1}),
        ((422, "VALIDATION_ERROR"), {"key": "k"}),
        ((422, "VALIDATION_ERROR"), {"key": "k", "qty": 0}),
        ((422, "VALIDATION_ERROR"), {"key": "k", "qty": "7"}),
        ((422, "VALIDATION_ERROR"), {"key": "k", "qty": 7, "side": "SELL"}),
        ((422, "VALIDATION_ERROR"), {"key": "k", "stopPrice": 7}),
    ):
        answer = await amend(gateway, order_id, **arguments)
        assert (answer.status, answer.json["reason"]) == expected, arguments
    missing = await amend(gateway, "ord_missing", "k", qty=1)
    foreign = await amend(gateway, order_id, "k", qty=1, account="foreign")
    assert (missing.status, missing.body) == (foreign.status, foreign.body)
    accepted = await amend(gateway, order_id, "k", qty=1600, **{"If-Match": f'"{version}"'})
    assert accepted.status == 202
    await until_amended(gateway, order_id, 1600)
    await gateway.request("POST", f"/orders/{order_id}/cancel")
    await gateway.until_status(order_id, "CANCELED")
    assert (await amend(gateway, order_id, "later", qty=1)).json["reason"] == "ORDER_FINAL"
    assert (await amend(gateway, order_id, "used", qty=1500)).json["status"] == "AMENDED"


async def test_an_order_has_one_amend_at_a_time_and_parts_that_are_filled_stay(tmp_path: Path) -> None:
    # The venue cannot be reached: nothing is sent, so the order itself is changed.
    async with running_gateway(tmp_path, VENUE_URL_SIM="http://127.0.0.1:1", VENUE_AMEND_SIM="in_place") as gateway:
        order_id = (await gateway.place(type="LIMIT", price=1)).json["orderId"]
        answer = await amend(gateway, order_id, "key", qty=2000)
        assert answer.json["status"] == "AMENDED"
        order = await gateway.order(order_id)
        assert (order["status"], order["qty"], order["version"]) == ("ACCEPTED", 2000, 3)
        ioc = (await gateway.place(type="MARKET")).json["orderId"]
        assert (await amend(gateway, ioc, "ioc", qty=2000)).json["reason"] in ("NOT_AMENDABLE", "ORDER_FINAL")


async def test_an_order_that_was_amended_before_it_was_sent_has_its_own_id_at_a_venue_that_replaces_orders(
    tmp_path: Path,
) -> None:
    broker = VenueProcess(tmp_path, "--amend", "cancel_replace")
    async with running_gateway(tmp_path, **broker.client_settings(VENUE_AMEND_SIM="cancel_replace")) as gateway:
        order_id = (await gateway.place(type="LIMIT", price=1)).json["orderId"]
        assert (await amend(gateway, order_id, "key", qty=2000)).json["status"] == "AMENDED"
        await broker.start()
        try:
            await gateway.until_status(order_id, "WORKING")
            assert (await gateway.request("POST", f"/orders/{order_id}/cancel")).status == 202
            assert (await gateway.until_status(order_id, "CANCELED"))["qty"] == 2000
        finally:
            broker.close()


async def test_amends_at_the_same_time_are_one_and_the_others_are_told_so(gateway: RunningGateway) -> None:
    order_id = await resting(gateway)
    answers = await asyncio.gather(*(amend(gateway, order_id, f"key-{n}", qty=2000 + n) for n in range(10)))
    reasons = [answer.json.get("reason") for answer in answers]
    assert set(reasons) <= {None, "AMEND_PENDING"}
    accepted = [2000 + n for n, answer in enumerate(answers) if answer.status == 202]
    await until_amended(gateway, order_id, accepted[-1])


async def test_equal_amends_without_a_key_are_recognised_by_their_content(gateway: RunningGateway) -> None:
    order_id = await resting(gateway)
    derive = {"Idempotency-Derive": "true"}
    answers = await asyncio.gather(*(amend(gateway, order_id, qty=2000, **derive) for _ in range(10)))
    assert {answer.status for answer in answers} == {202}
    assert len({answer.json["amendId"] for answer in answers}) == 1
    assert sum("Idempotent-Replayed" in answer.headers for answer in answers) == 9
    await until_amended(gateway, order_id, 2000)
    await amend(gateway, order_id, qty=1000, **derive)
    await until_amended(gateway, order_id, 1000)
    third = await amend(gateway, order_id, qty=2000, **derive)  # there and back: not a repeat of the first
    assert "Idempotent-Replayed" not in third.headers
    await until_amended(gateway, order_id, 2000)


@pytest.mark.parametrize(
    ("settings", "body", "reason"),
    [
        ({"RISK_MAX_QTY": "1500"}, {"qty": 2000}, "RISK_MAX_QTY"),
        ({"RISK_MAX_NOTIONAL": "1500"}, {"price": 2}, "RISK_MAX_NOTIONAL"),
        ({"RISK_MAX_OPEN_NOTIONAL": "1500"}, {"qty": 2000}, "LIMIT_OPEN_NOTIONAL"),
        ({"RISK_MAX_OPEN_NOTIONAL": "1500"}, {"price": 2}, "LIMIT_OPEN_NOTIONAL"),
        ({"RISK_MAX_POSITION": "1500"}, {"qty": 2000}, "LIMIT_POSITION"),
    ],
)
async def test_an_amend_is_judged_like_an_order_and_leaves_the_order_as_it_was(
    tmp_path: Path, settings: dict[str, str], body: dict[str, Any], reason: str
) -> None:
    async with running_gateway(tmp_path, **settings) as gateway:
        order_id = await resting(gateway)
        before = await gateway.order(order_id)
        rejected = await amend(gateway, order_id, "key", **body)
        assert (rejected.status, rejected.json["reason"]) == (422, reason)
        assert await gateway.order(order_id) == before
        # Nothing is stored under the key; less is always allowed.
        assert (await amend(gateway, order_id, "key", qty=500)).status == 202
        await until_amended(gateway, order_id, 500)


async def test_the_stop_price_of_a_stop_order_is_amended(embedded: RunningGateway) -> None:
    placed = await embedded.place(type="STOP_LIMIT", price=1000, stopPrice=900, timeInForce="GTC")
    order_id = placed.json["orderId"]
    await embedded.until_status(order_id, "WORKING")
    assert (await amend(embedded, order_id, "key", stopPrice=910, qty=2000)).status == 202
    order = await until_amended(embedded, order_id, 2000)
    assert (order["stopPrice"], order["price"], order["status"]) == (910, 1000, "WORKING")


async def test_the_client_amends(embedded: RunningGateway) -> None:
    order_id = await resting(embedded)
    async with AsyncClient(embedded.url, embedded.token()) as client:
        result = await client.amend(order_id, qty=2000, limit_price="1.5", idempotency_key="key")
        assert (result.order_id, result.replayed, result.idempotency_key) == (order_id, False, "key")
        order = await until_amended(embedded, order_id, 2000)
        again = await client.amend(order_id, qty=2000, limit_price="1.5", idempotency_key="key")
        assert (again.status, again.replayed, again.amend_id) == ("AMENDED", True, result.amend_id)
        await client.amend(order_id, qty=3000, version=order["version"])
        await until_amended(embedded, order_id, 3000)


async def test_an_order_that_reduces_nothing_any_more_is_judged_by_the_limits(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, RISK_MAX_OPEN_NOTIONAL="600000") as gateway:
        await gateway.until_status((await gateway.place(side="BUY", qty=1000)).json["orderId"], "FILLED")
        order_id = (await gateway.place(side="SELL", type="LIMIT", price=400)).json["orderId"]
        await gateway.until_status((await gateway.place(side="SELL", qty=1000)).json["orderId"], "FILLED")

        too_much = await amend(gateway, order_id, "key", price=700)
        assert (too_much.status, too_much.json["reason"]) == (422, "LIMIT_OPEN_NOTIONAL")
        assert (await amend(gateway, order_id, "key", qty=900, price=500)).status == 202
        assert (await until_amended(gateway, order_id, 900))["price"] == 500


async def test_an_amended_close_does_not_turn_the_position_around(embedded: RunningGateway) -> None:
    bought = await embedded.place(side="BUY", qty=3000)
    await embedded.until_status(bought.json["orderId"], "FILLED")
    body = {"type": "LIMIT", "price": 400}
    placed = await embedded.request("POST", "/positions/USDJPY/close", body=body)
    order_id = placed.json["orderId"]
    await embedded.until_status(order_id, "WORKING")
    sold = await embedded.place(side="SELL", qty=2600)
    await embedded.until_status(sold.json["orderId"], "FILLED")

    async def is_settled() -> bool:
        answer = await amend(embedded, order_id, "at-the-market", price=1)
        return bool(answer.json["status"] != "PENDING")

    await until(is_settled)
    refused = await amend(embedded, order_id, "at-the-market", price=1)
    assert refused.json["reason"] == "NOT_REDUCING: the position in USDJPY is 400 by now"
    # It may become smaller, and then fits the position again.
    await amend(embedded, order_id, "smaller", qty=400)
    await until_amended(embedded, order_id, 400)
    await amend(embedded, order_id, "again", price=1)
    await embedded.until_status(order_id, "FILLED")
    assert (await embedded.get("/positions")).json["positions"] == []


async def test_an_amend_without_a_quote_frees_no_money_that_a_stop_order_may_need(tmp_path: Path) -> None:
    broker = await VenueProcess(tmp_path, "--amend", "in_place").start()
    settings = broker.client_settings(
        VENUE_AMEND_SIM="in_place",
        VENUE_ORDER_TYPES_SIM="LIMIT,MARKET,STOP",
        VENUE_QUOTES_POLL_SEC_SIM="0.1",
        SWITCHYARD_QUOTE_AGE_MAX_SEC="1",
        RISK_MAX_OPEN_NOTIONAL="1000000",
    )
    try:
        async with running_gateway(tmp_path, **settings) as gateway:

            async def has_quote() -> bool:
                return bool((await gateway.get("/quotes/USDJPY")).status == 200)

            async def has_no_quote() -> bool:
                return not await has_quote()

            await until(has_quote)
            placed = await gateway.place(type="STOP", stopPrice=500, timeInForce="GTC")
            order_id = placed.json["orderId"]
            await gateway.until_status(order_id, "WORKING")
            await broker.set_faults(quotes_5xx=1.0)
            await until(has_no_quote)

            unknown = await amend(gateway, order_id, "unknown", stopPrice=5000)
            assert (unknown.status, unknown.json["reason"]) == (422, "LIMIT_NO_PRICE")
            assert (await amend(gateway, order_id, "smaller", qty=900)).status == 202
            await until_amended(gateway, order_id, 900)
            exposure = (await gateway.get("/risk/exposure")).json
            assert exposure["currencies"][0]["openNotional"] == 450_000
    finally:
        broker.close()
