"""An order keeps its request's trace id, and its key's row gets the order's result in the commit that ends it."""

import json
from pathlib import Path
from typing import Any

import pytest

from switchyard.domain.ids import AccountId
from switchyard.domain.orders.keys import DERIVED_ORDER, DO_ORDER, PLACE_ORDER, KeyEntry
from tests.support.do_order import RESTING, do_order
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.venue_process import VenueProcess

TRACED = {"trace_id": "trace-7", "requested_at": "2025-08-24T09:00:00+09:00"}


async def key_of(gateway: RunningGateway, operation: str, key: str, account: str = "demo") -> KeyEntry:
    entry = await gateway.database.keys.entry(AccountId(account), operation, key)
    assert entry is not None
    return entry


async def events_of(gateway: RunningGateway, order_id: str, account: str = "demo") -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = (await gateway.get(f"/orders/{order_id}/events", account)).json["events"]
    return events


async def test_the_trace_id_is_in_the_order_and_in_its_first_event(gateway: RunningGateway) -> None:
    await do_order(gateway, "k", account="do", **TRACED)
    [order] = (await gateway.get("/orders", "do")).json["orders"]
    assert (order["traceId"], order["requestedAt"]) == ("trace-7", "2025-08-24T00:00:00Z")
    events = await events_of(gateway, order["orderId"], "do")
    assert [event["data"]["order"]["traceId"] for event in events if event["type"] == "OrderAccepted"] == ["trace-7"]
    plain = (await gateway.place()).json["orderId"]
    assert "traceId" not in await gateway.order(plain)


async def test_the_trace_id_is_sent_to_the_venue(tmp_path: Path, engine_settings: dict[str, str]) -> None:
    broker = VenueProcess(tmp_path / "venue")
    (tmp_path / "venue").mkdir()
    await broker.start()
    try:
        async with running_gateway(tmp_path, **broker.client_settings(**engine_settings)) as gateway:
            await do_order(gateway, "k", account="do", **TRACED)
            without = (await gateway.place()).json["orderId"]
            await gateway.until_status(without, "FILLED")
        assert [line["trace_id"] for line in broker.events("order")] == ["trace-7", without]
    finally:
        broker.close()


async def test_the_end_of_an_order_is_the_result_of_its_key(gateway: RunningGateway) -> None:
    order_id = (await gateway.place("filled")).json["orderId"]
    await gateway.until_status(order_id, "FILLED")
    filled = await key_of(gateway, PLACE_ORDER, "filled")
    assert (filled.status, filled.http_status, filled.version) == ("succeeded", None, 2)
    assert filled.result_digest is not None and filled.result_digest.startswith("sha256:")

    resting = (await gateway.place("cancelled", type="LIMIT", price=1)).json["orderId"]
    await gateway.until_status(resting, "WORKING")
    assert (await key_of(gateway, PLACE_ORDER, "cancelled")).status == "accepted"
    await gateway.request("POST", f"/orders/{resting}/cancel")
    await gateway.until_status(resting, "CANCELED")
    cancelled = await key_of(gateway, PLACE_ORDER, "cancelled")
    assert (cancelled.status, cancelled.version) == ("succeeded", 2)
    assert cancelled.result_digest != filled.result_digest

    repeat = await gateway.place("filled")
    assert (repeat.status, repeat.json["orderId"]) == (202, order_id)


async def test_a_rejected_order_is_a_failed_result(tmp_path: Path, engine_settings: dict[str, str]) -> None:
    async with running_gateway(tmp_path, EXCHANGE_SIM_REJECT_ALL_SIM="true", **engine_settings) as gateway:
        order_id = (await gateway.place("k")).json["orderId"]
        await gateway.until_status(order_id, "REJECTED")
        entry = await key_of(gateway, PLACE_ORDER, "k")
        assert (entry.status, entry.result_digest is not None) == ("failed", True)


async def test_a_derived_key_gets_its_result_too(gateway: RunningGateway) -> None:
    body = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000}
    placed = await gateway.request("POST", "/orders", body=body, headers={"Idempotency-Derive": "true"})
    order_id = placed.json["orderId"]
    await gateway.until_status(order_id, "FILLED")
    key = (await events_of(gateway, order_id))[0]["data"]["idempotency"]["key"]
    entry = await key_of(gateway, DERIVED_ORDER, key)
    assert (entry.status, entry.result_digest is not None) == ("succeeded", True)


async def test_the_answer_of_do_order_is_stored_although_no_request_waits_for_it(gateway: RunningGateway) -> None:
    accepted = await do_order(gateway, "k", **RESTING)
    assert accepted.json["status"] == "accepted"
    [order] = (await gateway.get("/orders", "do")).json["orders"]
    await gateway.request("POST", f"/orders/{order['orderId']}/cancel", account="do")
    await gateway.until_status(order["orderId"], "CANCELED", account="do")
    entry = await key_of(gateway, DO_ORDER, "k", "do")
    assert (entry.status, entry.http_status) == ("succeeded", 200)
    assert entry.response_payload_json is not None
    assert json.loads(entry.response_payload_json)["status"] == "canceled"
    events = await events_of(gateway, order["orderId"], "do")
    assert [event["type"] for event in events][-2:] == ["OrderUpdated", "ResultRecorded"]
    assert events[-1]["at"] == events[-2]["at"]  # one commit
    repeat = await do_order(gateway, "k", **RESTING)
    assert (repeat.status, repeat.body) == (200, entry.response_payload_json.encode())


async def test_every_partial_fill_is_in_the_stored_answer(tmp_path: Path, engine_settings: dict[str, str]) -> None:
    async with running_gateway(tmp_path, EXCHANGE_SIM_PARTIAL_STEPS_SIM="3", **engine_settings) as gateway:
        answer = await do_order(gateway, "k", trace_id="t")
        entry = await key_of(gateway, DO_ORDER, "k", "do")
        assert answer.body.decode() == entry.response_payload_json
        assert len(answer.json["fills"]) == 3
        assert answer.json["trace_id"] == "t"


async def test_an_event_shows_each_step_of_an_outbox_row(gateway: RunningGateway) -> None:
    order_id = (await gateway.place("k")).json["orderId"]
    await gateway.until_status(order_id, "FILLED")
    events = await events_of(gateway, order_id)
    assert events[0]["type"] == "OrderAccepted"  # it queues the row
    steps = [row for event in events for row in event["data"].get("outbox", [])]
    worker = steps[0].pop("worker")
    assert worker
    assert steps == [{"status": "sending", "attempt": 1}, {"status": "sent", "bytesSent": True}]


@pytest.mark.parametrize("cancels", [True, False])
async def test_a_row_that_is_never_sent_counts_as_dead(tmp_path: Path, cancels: bool) -> None:
    async with running_gateway(tmp_path, SWITCHYARD_WORKER="false") as gateway:
        if cancels:
            order_id = (await gateway.place(type="LIMIT", price=1)).json["orderId"]
            await gateway.request("POST", f"/orders/{order_id}/cancel")
        else:
            answer = await do_order(gateway, "late", account="do")  # nobody sends it, so it expires
            assert answer.json["error"] in ("BROKER_DOWN", "BROKER_TIMEOUT")
        metrics = (await gateway.get("/metrics", None)).body.decode()
        assert 'outbox_send_total{outcome="dead"} 1.0' in metrics
        assert 'outbox_send_total{outcome="success"} 0.0' in metrics
