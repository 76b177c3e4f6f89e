"""Pre-trade risk over HTTP: a rejected order is stored, keeps its key and is never sent."""

import asyncio
from pathlib import Path

from tests.support.do_order import do_order
from tests.support.gateway import running_gateway

LIMIT = {"RISK_MAX_QTY": "1000"}


async def test_an_order_above_the_largest_quantity_is_422_and_stored_as_rejected(
    tmp_path: Path, engine_settings: dict[str, str]
) -> None:
    async with running_gateway(tmp_path, **LIMIT, **engine_settings) as gateway:
        answer = await gateway.place(qty=2000)
        assert answer.status == 422
        order_id = answer.json["orderId"]
        assert answer.json == {
            "status": "REJECTED",
            "reason": "RISK_MAX_QTY",
            "detail": "qty 2000 is above 1000",
            "orderId": order_id,
        }
        order = await gateway.order(order_id)
        assert (order["status"], order["reason"]) == ("REJECTED", "RISK_MAX_QTY: qty 2000 is above 1000")
        assert (order["version"], order["venueOrderId"], order["filledQty"]) == (1, None, 0)
        [event] = (await gateway.get(f"/orders/{order_id}/events")).json["events"]
        assert (event["type"], event["data"]["reason"]) == ("RiskRejected", "RISK_MAX_QTY")
        assert (await gateway.place(qty=1000)).status == 202


async def test_a_repeat_gets_the_same_rejection_also_after_a_restart_with_another_limit(
    tmp_path: Path, engine_settings: dict[str, str]
) -> None:
    async with running_gateway(tmp_path, **LIMIT, **engine_settings) as gateway:
        first = await gateway.place(qty=2000, key="lost-answer")
        again = await gateway.place(qty=2000, key="lost-answer")
    async with running_gateway(tmp_path, **engine_settings) as gateway:
        later = await gateway.place(qty=2000, key="lost-answer")
        other = await gateway.place(qty=2001, key="lost-answer")
    assert first.status == again.status == later.status == 422
    assert first.json == again.json == later.json
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == later.headers["Idempotent-Replayed"] == "true"
    assert (other.status, other.json["reason"]) == (409, "IDEMPOTENCY_CONFLICT")


async def test_a_repeat_of_an_accepted_order_is_answered_before_risk_is_asked(
    tmp_path: Path, engine_settings: dict[str, str]
) -> None:
    async with running_gateway(tmp_path, **engine_settings) as gateway:
        first = await gateway.place(qty=2000, key="accepted")
    async with running_gateway(tmp_path, **LIMIT, **engine_settings) as gateway:
        again = await gateway.place(qty=2000, key="accepted")
    assert (first.status, again.status) == (202, 202)
    assert first.json == again.json


async def test_equal_requests_at_the_same_time_get_one_rejected_order(
    tmp_path: Path, engine_settings: dict[str, str]
) -> None:
    async with running_gateway(tmp_path, **LIMIT, **engine_settings) as gateway:
        answers = await asyncio.gather(*(gateway.place(qty=2000, key="same") for _ in range(40)))
        assert {answer.status for answer in answers} == {422}
        assert len({answer.json["orderId"] for answer in answers}) == 1
        orders = (await gateway.get("/orders")).json["orders"]
        assert [order["status"] for order in orders] == ["REJECTED"]


async def test_a_derived_key_is_rejected_and_its_repeat_gets_the_same_answer(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, **LIMIT, IDEMPOTENCY_DERIVE="true") as gateway:
        first, again = await gateway.place(qty=2000), await gateway.place(qty=2000)
        assert (first.status, again.status) == (422, 422)
        assert first.json == again.json


async def test_do_order_answers_a_rejection_in_its_own_form_and_repeats_it(
    tmp_path: Path, engine_settings: dict[str, str]
) -> None:
    async with running_gateway(tmp_path, **LIMIT, **engine_settings) as gateway:
        first, again = await do_order(gateway, "do-risk"), await do_order(gateway, "do-risk")
    assert (first.status, again.status) == (422, 422)
    assert first.json == again.json
    assert (first.json["error"], first.json["reason_code"]) == ("VALIDATION_ERROR", "RISK_MAX_QTY")
    assert first.json["message"] == "a pre-trade check rejected the order: qty 10000 is above 1000"
    assert again.headers["Idempotent-Replayed"] == "true"
