"""Orders over HTTP: placed, filled, cancelled, listed and repeated."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from switchyard.domain import decisions
from switchyard.domain.ids import OrderId, other_generations
from tests.support.contract import Contract
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.memory.clock import START


async def test_a_market_order_is_accepted_and_filled(gateway: RunningGateway) -> None:
    answer = await gateway.place()
    assert answer.status == 202
    assert answer.json["status"] == "ACCEPTED"
    order = await gateway.until_status(answer.json["orderId"], "FILLED")
    assert (order["filledQty"], order["remainingQty"], order["venue"]) == (1000, 0, "sim")
    assert order["avgPrice"] > 0
    assert order["venueOrderId"]


async def test_an_order_has_one_event_for_each_step_from_accept_to_fill(gateway: RunningGateway) -> None:
    order_id = (await gateway.place(key="story")).json["orderId"]
    await gateway.until_status(order_id, "FILLED")
    events = (await gateway.get(f"/orders/{order_id}/events")).json["events"]
    types = [event["type"] for event in events]
    assert types[:2] == ["OrderAccepted", "OrderSending"]
    assert Counter(types) == {
        "OrderAccepted": 1,
        "OrderSending": 1,
        "OrderSent": 1,
        "ExecutionReport": 1,
        "OrderUpdated": 1,
    }
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    assert events[0]["data"]["idempotency"]["key"] == "story"
    assert events[0]["data"]["quote"]["bid"] < events[0]["data"]["quote"]["ask"]


async def test_a_resting_limit_order_is_cancelled_at_the_venue(gateway: RunningGateway) -> None:
    order_id = (await gateway.place(type="LIMIT", price=1)).json["orderId"]
    await gateway.until_status(order_id, "WORKING")
    answer = await gateway.request("POST", f"/orders/{order_id}/cancel")
    assert (answer.status, answer.json) == (202, {"orderId": order_id, "status": "CANCEL_REQUESTED"})
    order = await gateway.until_status(order_id, "CANCELED")
    assert order["filledQty"] == 0
    again = await gateway.request("POST", f"/orders/{order_id}/cancel")
    assert (again.status, again.json["reason"]) == (409, "ORDER_FINAL")


async def test_a_repeated_cancel_is_recorded_once(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, EXCHANGE_SIM_DELAY_MS_SIM="3600000") as gateway:
        order_id = (await gateway.place(type="LIMIT", price=1)).json["orderId"]
        await gateway.until_status(order_id, "WORKING")
        answers = await asyncio.gather(*(gateway.request("POST", f"/orders/{order_id}/cancel") for _ in range(20)))
        assert {answer.status for answer in answers} <= {202, 409}
        await gateway.until_status(order_id, "CANCELED")
        events = (await gateway.get(f"/orders/{order_id}/events")).json["events"]
        assert sum(event["type"] == "CancelRequested" for event in events) == 1


async def test_an_order_that_was_never_sent_is_cancelled_at_once(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SWITCHYARD_WORKER="false") as gateway:
        order_id = (await gateway.place()).json["orderId"]
        assert (await gateway.request("POST", f"/orders/{order_id}/cancel")).status == 202
        order = await gateway.order(order_id)
        assert (order["status"], order["reason"]) == ("CANCELED", "CANCELED_BEFORE_SENDING")


async def test_partial_fills_add_up(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, EXCHANGE_SIM_PARTIAL_STEPS_SIM="3", EXCHANGE_SIM_DELAY_MS_SIM="5") as gateway:
        order_id = (await gateway.place(qty=1000)).json["orderId"]
        order = await gateway.until_status(order_id, "FILLED")
        events = (await gateway.get(f"/orders/{order_id}/events")).json["events"]
        fills = [event["data"].get("lastQty", 0) for event in events if event["type"] == "ExecutionReport"]
        assert len(fills) == 3
        assert sum(fills) == order["filledQty"] == 1000


async def test_a_venue_that_rejects_ends_the_order_with_its_reason(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, EXCHANGE_SIM_REJECT_ALL_SIM="true") as gateway:
        order = await gateway.until_status((await gateway.place()).json["orderId"], "REJECTED")
        assert order["reason"] == "REJECTED_BY_VENUE"


async def test_orders_go_to_the_venue_of_their_symbol(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SOR_VENUES="simA,simB", SOR_SYMBOL_ROUTES="ETH=simB") as gateway:
        one = await gateway.until_status((await gateway.place(symbol="ETH", qty=1)).json["orderId"], "FILLED")
        other = await gateway.until_status((await gateway.place(symbol="BTC", qty=1)).json["orderId"], "FILLED")
        assert (one["venue"], other["venue"]) == ("simB", "simA")


async def test_a_hundred_posts_with_one_key_place_one_order(gateway: RunningGateway) -> None:
    answers = await asyncio.gather(*(gateway.place(key="once") for _ in range(100)))
    assert {answer.status for answer in answers} == {202}
    assert len({answer.body for answer in answers}) == 1
    assert Counter(answer.headers.get("Idempotent-Replayed") for answer in answers) == {"true": 99, None: 1}
    assert len((await gateway.get("/orders")).json["orders"]) == 1


async def test_the_same_key_with_another_body_is_a_conflict(gateway: RunningGateway) -> None:
    answers = await asyncio.gather(*(gateway.place(key="k", qty=1000 + number) for number in range(20)))
    assert Counter(answer.status for answer in answers) == {202: 1, 409: 19}
    rejected = next(answer.json for answer in answers if answer.status == 409)
    assert rejected["reason"] == "IDEMPOTENCY_CONFLICT"


async def test_a_repeat_may_format_the_same_body_differently(gateway: RunningGateway) -> None:
    one = await gateway.request(
        "POST", "/orders", headers={"Idempotency-Key": "k"},
        body=b'{"symbol":"USDJPY","side":"BUY","type":"LIMIT","qty":1000,"price":145.10}',
    )  # fmt: skip
    other = await gateway.request(
        "POST", "/orders", headers={"Idempotency-Key": "k"},
        body=b'{ "price": 1451e-1, "qty": 1000.0, "type": "LIMIT", "side": "BUY", "symbol": "USDJPY" }',
    )  # fmt: skip
    assert (one.status, other.status) == (202, 202)
    assert one.body == other.body


async def test_the_same_key_of_another_account_places_another_order(gateway: RunningGateway) -> None:
    one, other = await gateway.place(key="k"), await gateway.place(key="k", account="other")
    assert one.json["orderId"] != other.json["orderId"]


async def test_without_a_key_each_post_places_an_order(gateway: RunningGateway) -> None:
    answers = await asyncio.gather(*(gateway.place() for _ in range(5)))
    assert len({answer.json["orderId"] for answer in answers}) == 5


async def test_a_key_can_be_reused_once_it_has_expired_and_its_order_is_final(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, IDEMPOTENCY_TTL_SEC="1") as gateway:
        resting = (await gateway.place(key="rests", type="LIMIT", price=1)).json["orderId"]
        ended = (await gateway.place(key="ends")).json["orderId"]
        await gateway.until_status(ended, "FILLED")
        await gateway.until_status(resting, "WORKING")
        second = ended
        while second == ended:
            await asyncio.sleep(0.05)
            second = (await gateway.place(key="ends")).json["orderId"]
        assert (await gateway.place(key="rests", type="LIMIT", price=1)).json["orderId"] == resting
        events = (await gateway.get(f"/orders/{second}/events")).json["events"]
        assert events[0]["data"]["idempotency"]["generation"] == 1
        await gateway.until_status(second, "FILLED")


async def test_a_key_that_is_used_again_takes_no_id_that_its_order_has_at_the_venue(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, IDEMPOTENCY_TTL_SEC="1") as gateway:
        ended = (await gateway.place(key="k")).json["orderId"]
        await gateway.until_status(ended, "FILLED")
        state = (await gateway.database.journal.load([OrderId(ended)]))[OrderId(ended)]
        # After a restore an order may go on under a later id of its key (ADR 44).
        [later] = other_generations(state.order.venue_client_order_id, 1)
        change = decisions.adopt_amend(state, later, START, replaces=True, venue_order_id=None)
        assert change is not None
        await gateway.engine._core.sequencer.commit(change)
        again = ended
        while again == ended:
            await asyncio.sleep(0.05)
            again = (await gateway.place(key="k")).json["orderId"]
        events = (await gateway.get(f"/orders/{again}/events")).json["events"]
        assert events[0]["data"]["idempotency"]["generation"] == 2
        await gateway.until_status(again, "FILLED")


async def test_another_accounts_order_gets_the_same_bytes_as_a_missing_one(gateway: RunningGateway) -> None:
    order_id = (await gateway.place()).json["orderId"]
    missing = "ord_" + "0" * 26
    for method, path in [
        ("GET", "/orders/{}"),
        ("GET", "/orders/{}/events"),
        ("GET", "/orders/{}/stream"),
        ("POST", "/orders/{}/cancel"),
    ]:
        foreign = await gateway.request(method, path.format(order_id), account="stranger")
        absent = await gateway.request(method, path.format(missing), account="stranger")
        assert (foreign.status, foreign.body) == (absent.status, absent.body) == (404, absent.body)
        assert foreign.headers == absent.headers
    foreign = await gateway.get("/accounts/demo/events", account="stranger")
    absent = await gateway.get("/accounts/nobody/events", account="stranger")
    assert (foreign.status, foreign.body, foreign.headers) == (404, absent.body, absent.headers)
    assert (await gateway.get("/orders", account="stranger")).json["orders"] == []


async def test_orders_are_listed_newest_first_in_pages_with_filters(gateway: RunningGateway) -> None:
    placed = [
        (await gateway.place(type="LIMIT", price=1, symbol=symbol, qty=1, strategy=strategy)).json["orderId"]
        for symbol in ("BTC", "ETH")
        for strategy in ("one", "two", "three")
    ]
    listed: list[str] = []
    cursor = ""
    while cursor is not None:
        page = (await gateway.get(f"/orders?limit=4{cursor and '&cursor=' + cursor}")).json
        listed += [order["orderId"] for order in page["orders"]]
        cursor = page["nextCursor"]
    assert sorted(listed) == sorted(placed)
    assert listed == sorted(listed, reverse=True)
    found = (await gateway.get("/orders?symbol=ETH&strategy=two&side=BUY")).json["orders"]
    assert [order["orderId"] for order in found] == [placed[4]]
    assert (await gateway.get("/orders?status=FILLED,REJECTED")).json["orders"] == []


async def test_events_can_be_filtered_by_time(gateway: RunningGateway) -> None:
    order_id = (await gateway.place()).json["orderId"]
    await gateway.until_status(order_id, "FILLED")
    events = (await gateway.get("/accounts/demo/events")).json["events"]
    middle = events[2]["at"]
    since = (await gateway.get(f"/accounts/demo/events?since={middle}")).json["events"]
    after = (await gateway.get(f"/accounts/demo/events?after={middle}")).json["events"]
    assert since == [event for event in events if event["at"] >= middle]
    assert after == [event for event in events if event["at"] > middle]
    assert (await gateway.get("/accounts/demo/events?limit=1")).json["events"] == events[-1:]
    assert (await gateway.get("/accounts/demo/events?since=0")).json["events"] == events
    assert (await gateway.get("/accounts/demo/events?since=4102444800000")).json["events"] == []
    assert (await gateway.get("/accounts/demo/events?since=4102444800")).json["events"] == []
    assert (await gateway.get("/accounts/demo/events?since=2026-01-01T00:00:00%2B09:00")).json["events"] == events


async def test_health_needs_no_token_and_metrics_may_need_one(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, GATEWAY_METRICS_TOKEN="let me see") as gateway:
        assert (await gateway.get("/health", account=None)).json == {"status": "ok"}
        assert (await gateway.get("/metrics", account=None)).status == 401
        await gateway.until_status((await gateway.place()).json["orderId"], "FILLED")
        shown = await gateway.request("GET", "/metrics", account=None, headers={"X-Metrics-Token": "let me see"})
        assert shown.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = shown.body.decode()
        for line in (
            "gateway_orders_accepted_total 1.0",
            "gateway_accept_to_sent_latency_ms_count 1.0",
            "gateway_accept_to_execution_report_latency_ms_count 1.0",
            'outbox_send_total{outcome="success"} 1.0',
            'outbox_rows{status="queued"} 0.0',
        ):
            assert line in text
        assert "gateway_accept_to_sent_latency_ms_max" in text


async def test_a_full_queue_answers_503_and_writes_nothing(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SWITCHYARD_QUEUE_CAPACITY="1", SWITCHYARD_WORKER="false") as gateway:
        answers = await asyncio.gather(*(gateway.place(key=f"k{number}") for number in range(200)))
        counts = Counter(answer.status for answer in answers)
        assert set(counts) == {202, 503}
        rejected = next(answer for answer in answers if answer.status == 503)
        assert rejected.json["reason"] == "QUEUE_REJECT"
        assert rejected.headers["Retry-After"]
        assert await gateway.journal_seq() == counts[202]


def test_the_served_routes_are_the_routes_of_the_contract(embedded_routes: set[tuple[str, str]]) -> None:
    assert embedded_routes == Contract().operations(of_backoffice=False)


@pytest.fixture
async def embedded_routes(embedded: RunningGateway) -> set[tuple[str, str]]:
    from switchyard.entrypoints.http.app import build_gateway

    routes = build_gateway(embedded.engine.settings, embedded.engine).routes
    contract_names = {"order_id": "orderId", "account_id": "accountId", "kill_id": "killId"}
    served = set()
    for route in routes:
        path = route.path
        for name, contract_name in contract_names.items():
            path = path.replace(f"{{{name}}}", f"{{{contract_name}}}")
        served |= {(method, path) for method in route.methods or {"GET"} if method != "HEAD"}
    return served
