"""`POST /do/order` places an order once and answers with the broker's result, the same for every repeat."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
import pytest_asyncio

from switchyard.domain.accounts.positions import ACCOUNT_TOTAL
from switchyard.domain.ids import AccountId
from switchyard.domain.values import digest
from tests.support.do_order import MARKET, PATH, RESTING, body, do_order, error, key_entry
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.polling import until
from tests.support.venue_process import VenueProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["sqlite", "postgres"])
async def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningGateway]:
    """One gateway for all tests; each test has its own account."""
    settings = {"DO_RATE_PER_MIN": "10000", "DO_REQUIRE_TOKEN": "false"}
    if request.param == "postgres":
        settings["SWITCHYARD_DATABASE_URL"] = request.getfixturevalue("postgres_server").create_database()
    async with running_gateway(tmp_path_factory.mktemp(request.param), **settings) as running:
        yield running


async def orders_of(gateway: RunningGateway, account: str) -> list[dict[str, object]]:
    listed: list[dict[str, object]] = (await gateway.get("/orders", account)).json["orders"]
    return listed


async def test_a_market_order_is_answered_with_its_fills_in_lots(gateway: RunningGateway) -> None:
    answer = await do_order(gateway, "k", trace_id="t-1")
    assert answer.status == 201
    assert "Idempotent-Replayed" not in answer.headers
    result = answer.json
    assert (result["order_id"], result["idempotency_key"], result["trace_id"]) == (MARKET["order_id"], "k", "t-1")
    assert (result["status"], result["filled_qty"], result["reason_code"]) == ("filled", 0.1, None)
    assert result["broker_order_id"]
    assert [(fill["qty"], fill["price"]) for fill in result["fills"]] == [(0.1, result["avg_price"])]
    [order] = await orders_of(gateway, "do")
    shown = {"clientOrderId": MARKET["order_id"], "symbol": "USDJPY", "qty": 10_000, "timeInForce": "IOC"}
    assert {name: order[name] for name in shown} == shown


async def test_a_gtc_order_is_answered_once_the_broker_has_it(gateway: RunningGateway) -> None:
    answer = await do_order(gateway, "k", account="rests", **RESTING)
    assert (answer.status, answer.json["status"], answer.json["fills"]) == (201, "accepted", [])
    assert answer.json["broker_order_id"]
    repeat = await do_order(gateway, "k", account="rests", **RESTING)
    assert (repeat.status, repeat.json["status"]) == (200, "accepted")
    assert (await key_entry(gateway, "k", "rests")).status == "accepted"


async def test_a_repeat_shows_that_a_resting_order_was_cancelled(gateway: RunningGateway) -> None:
    await do_order(gateway, "k", account="cancels", **RESTING)
    [order] = await orders_of(gateway, "cancels")
    await gateway.request("POST", f"/orders/{order['orderId']}/cancel", account="cancels")

    async def ended() -> bool:
        repeat = await do_order(gateway, "k", account="cancels", **RESTING)
        return bool(repeat.json["status"] == "canceled")

    await until(ended)
    assert (await key_entry(gateway, "k", "cancels")).status == "succeeded"


async def test_a_repeat_gets_the_same_bytes_with_any_trace_id(gateway: RunningGateway) -> None:
    first = await do_order(gateway, "k", account="traces", trace_id="t-1")
    for trace_id in ("t-1", "t-2", None, "absent"):
        repeat = await do_order(gateway, "k", account="traces", trace_id=trace_id)
        assert (repeat.status, repeat.body, repeat.headers["Idempotent-Replayed"]) == (200, first.body, "true")
    assert len(await orders_of(gateway, "traces")) == 1


async def test_a_repeat_may_format_the_same_body_differently(gateway: RunningGateway) -> None:
    await do_order(gateway, "k", account="writes")
    text = json.dumps(body("k", qty="QTY")).replace('"QTY"', "1.00e-1").encode()
    headers = {"Idempotency-Key": "k"}
    assert (await gateway.request("POST", PATH, account="writes", headers=headers, body=b" " + text)).status == 200


async def test_another_body_under_the_same_key_is_a_conflict(gateway: RunningGateway) -> None:
    asked = (do_order(gateway, "k", account="differs", qty=number / 10) for number in range(1, 11))
    answers = await asyncio.gather(*asked)
    assert Counter(answer.status for answer in answers) == {201: 1, 409: 9}
    rejected = next(answer.json for answer in answers if answer.status == 409)
    assert rejected.pop("field") == "Idempotency-Key"
    assert rejected == {"error": "IDEMPOTENCY_CONFLICT", "message": "body differs", "idempotency_key": "k"}


async def test_fifty_equal_requests_at_once_place_one_order(gateway: RunningGateway) -> None:
    asked = (do_order(gateway, "k", account="fifty", trace_id=f"t-{number}") for number in range(50))
    answers = await asyncio.gather(*asked)
    assert Counter(answer.status for answer in answers) == {201: 1, 200: 49}
    assert len(await orders_of(gateway, "fifty")) == 1
    assert (await do_order(gateway, "k", account="fifty")).json["status"] == "filled"


async def test_the_same_key_of_another_account_or_route_places_another_order(gateway: RunningGateway) -> None:
    answers = [await do_order(gateway, "shared", account=account) for account in (None, "a", "b")]
    assert [answer.status for answer in answers] == [201, 201, 201]
    assert len({answer.json["broker_order_id"] for answer in answers}) == 3
    assert (await gateway.place(key="shared", account="a")).status == 202
    assert [len(await orders_of(gateway, account)) for account in ("a", "b")] == [2, 1]


async def test_the_key_store_has_the_final_answer(gateway: RunningGateway) -> None:
    answer = await do_order(gateway, "k", account="stores")
    entry = await key_entry(gateway, "k", "stores")
    assert (entry.status, entry.http_status, entry.response_payload_json) == ("succeeded", 200, answer.body.decode())
    canonical = json.loads(json.dumps(body("k", time_in_force="IOC")), parse_float=Decimal)
    assert entry.request_digest == digest(canonical)
    assert entry.result_digest is not None and entry.result_digest.startswith("sha256:")
    assert entry.expires_at - entry.created_at == timedelta(hours=48)


async def test_partial_fills_are_all_shown_without_a_cache(tmp_path: Path) -> None:
    (tmp_path / "switchyard.yaml").write_text("idempotency: {enabled: false}")
    settings = {"SWITCHYARD_CONFIG": str(tmp_path / "switchyard.yaml"), "EXCHANGE_SIM_PARTIAL_STEPS_SIM": "4"}
    async with running_gateway(tmp_path, **settings) as gateway:
        first, repeat = [await do_order(gateway, "k", qty=0.4, trace_id=trace) for trace in ("t-1", "t-2")]
        assert (first.json["status"], first.json["filled_qty"]) == ("filled", 0.4)
        assert [fill["qty"] for fill in first.json["fills"]] == [0.1, 0.1, 0.1, 0.1]
        assert len({fill["exec_id"] for fill in first.json["fills"]}) == 4
        assert (repeat.status, repeat.body) == (200, first.body)


async def test_without_a_worker_a_gtc_order_waits_and_an_ioc_order_expires(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SWITCHYARD_WORKER="false", DO_REQUIRE_TOKEN="false") as gateway:
        patient, hasty = await asyncio.gather(do_order(gateway, "patient", **RESTING), do_order(gateway, "hasty"))
        assert (patient.status, patient.json["status"], patient.json["broker_order_id"]) == (201, "accepted", None)
        assert error(hasty) == (503, "BROKER_DOWN")
        assert hasty.headers["Retry-After"]
        orders = await orders_of(gateway, "do")
        assert {order["timeInForce"]: order["status"] for order in orders} == {"GTC": "ACCEPTED", "IOC": "EXPIRED"}
        entry = await key_entry(gateway, "hasty")
        assert (entry.status, entry.http_status) == ("failed", 503)
        # The head of the queue has waited longer than an IOC order may, so the order is rejected at once.
        assert error(await do_order(gateway, "hasty-2")) == (503, "BROKER_DOWN")
        assert error(await do_order(gateway, "hasty", qty=0.2)) == (409, "IDEMPOTENCY_CONFLICT")


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_an_order_of_a_long_outage_ends_and_its_key_can_be_tried_again(
    tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    settings = {"OUTBOX_RETRY_MAX": "3"}  # then orders wait for 15.4 s, longer than the request
    if engine == "postgres":
        settings["SWITCHYARD_DATABASE_URL"] = request.getfixturevalue("postgres_server").create_database()
    venue = VenueProcess(tmp_path / "venue")
    await venue.start()
    async with running_gateway(tmp_path, VENUE_URL_SIM=venue.url, **settings) as gateway:
        venue.kill()

        async def is_blocked() -> bool:
            [shown] = (await gateway.get("/venues")).json["venues"]
            return bool(shown["breaker"] == "open")

        await until(is_blocked)
        first = await do_order(gateway, "k", account="out", **RESTING)
        assert (first.status, first.json["status"], first.json["broker_order_id"]) == (201, "accepted", None)
        [order] = await orders_of(gateway, "out")
        ended = await gateway.until_status(str(order["orderId"]), "REJECTED", account="out")
        assert ended["reason"] == "RETRY_EXHAUSTED"
        await venue.start()

        async def is_placed() -> bool:
            again = await do_order(gateway, "k", account="out", **RESTING)
            return again.status in (200, 201) and again.json["broker_order_id"] is not None

        await until(is_placed)
        assert len(await orders_of(gateway, "out")) >= 2, "a new generation of the key"
        assert len(venue.events("order")) == 1
    venue.close()


async def test_a_repeat_of_a_rejected_order_gets_the_recorded_rejection(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, EXCHANGE_SIM_REJECT_ALL_SIM="true") as gateway:
        first, repeat = await do_order(gateway, "k", trace_id="t-1"), await do_order(gateway, "k")
        assert error(first) == error(repeat) == (400, "BROKER_REJECTED")
        assert first.body == repeat.body
        assert repeat.headers["Idempotent-Replayed"] == "true"
        assert first.json["reason_code"] == "REJECTED_BY_VENUE"
        entry = await key_entry(gateway, "k")
        assert (entry.status, entry.http_status, entry.response_payload_json) == ("failed", 400, first.body.decode())


async def test_a_key_can_be_reused_after_it_has_expired(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, DO_IDEMPOTENCY_TTL_SEC="1") as gateway:
        first = await do_order(gateway, "k")
        again = await do_order(gateway, "k", qty=0.2)
        while again.status == 409:
            await asyncio.sleep(0.05)
            again = await do_order(gateway, "k", qty=0.2)
        assert (again.status, again.json["filled_qty"]) == (201, 0.2)
        assert again.json["broker_order_id"] != first.json["broker_order_id"]
        shown = (await gateway.request("GET", "/metrics", account=None)).body.decode()
        assert "idempotency_expired_keys_reused_total 1.0" in shown


async def test_the_specifications_example_works_after_a_losing_round_trip_and_limits_hold(tmp_path: Path) -> None:
    conditions = {"max_dd": 0.1, "max_consecutive_loss": 3, "max_spread": 0.002}
    async with running_gateway(tmp_path) as gateway:
        total = (AccountId("do"), ACCOUNT_TOTAL)
        for number in range(20):  # until the market has not risen by the spread in between
            for side in ("BUY", "SELL"):  # at the ask, then at the bid
                answer = await do_order(gateway, f"{side}-{number}", side=side, risk_constraints=conditions)
                assert (answer.status, answer.json["status"]) == (201, "filled")
            results = (await gateway.engine._database.journal.load_positions([total]))[total]
            if results.consecutive_losses and results.realised_pnl < 0:
                break
        assert results.realised_pnl < 0, "the test needs a loss"
        assert (await do_order(gateway, "again", risk_constraints=conditions)).status == 201
        rejected = await do_order(gateway, "tight", risk_constraints={"max_dd": 0})
        assert (rejected.status, rejected.json["reason_code"]) == (422, "MAX_DD")
        assert "DO_RISK_CAPITAL 1000000" in rejected.json["message"]


async def test_an_order_below_the_minimum_lot_is_rejected_unless_it_only_reduces_a_position(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        small = await do_order(gateway, "small", account="lots", qty=0.005)
        assert (small.status, small.json["error"], small.json["reason_code"]) == (
            422,
            "VALIDATION_ERROR",
            "MIN_ORDER_SIZE",
        )
        units = await gateway.place(account="lots", qty=999)
        assert (units.status, units.json["reason"]) == (422, "MIN_ORDER_SIZE")
        smallest = await do_order(gateway, "smallest", account="lots", qty=0.01)
        assert (smallest.status, smallest.json["filled_qty"]) == (201, 0.01)
        exit_ = await do_order(gateway, "exit", account="lots", qty=0.005, side="SELL")
        assert (exit_.status, exit_.json["filled_qty"]) == (201, 0.005)
        listed = (await gateway.get("/instruments")).json["instruments"]
        majors = [each for each in listed if each["kind"] == "fx"]
        assert {(each["lot"], each["minQty"], each["step"]) for each in majors} == {(100_000, 1_000, 1)}
