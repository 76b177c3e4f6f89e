"""Pre-trade risk over HTTP: a rejected order is stored, keeps its key and is never sent."""

import asyncio
import subprocess
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from switchyard.adapters.redis.host import RedisHost
from switchyard.client import ApiError, AsyncClient, Client, DryRun, OrderUpdate
from tests.support.do_order import do_order
from tests.support.figures import figures_of
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.process import SECRET, run_command
from tests.support.redis import RedisServer

LIMIT = {"RISK_MAX_QTY": "1000"}
MARKET: dict[str, Any] = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000}


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
            "detail": "qty 2000 is above 1000 (RISK_MAX_QTY)",
            "orderId": order_id,
        }
        order = await gateway.order(order_id)
        assert (order["status"], order["reason"]) == ("REJECTED", "RISK_MAX_QTY: qty 2000 is above 1000 (RISK_MAX_QTY)")
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
    assert first.json["message"] == "a pre-trade check rejected the order: qty 10000 is above 1000 (RISK_MAX_QTY)"
    assert again.headers["Idempotent-Replayed"] == "true"


async def test_a_dry_run_shows_every_check_and_stores_nothing(tmp_path: Path, engine_settings: dict[str, str]) -> None:
    limits = {"RISK_MAX_NOTIONAL": "100000", "RISK_RATE_PER_SEC": "0.001", "RISK_DUPLICATE_WINDOW_SEC": "60"}
    order = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "qty": 2000, "price": 150}
    async with running_gateway(tmp_path, **LIMIT, **limits, **engine_settings) as gateway:
        for _ in range(3):
            answer = await gateway.request("POST", "/orders?dryRun=true", body=order)
            assert answer.status == 200
            assert answer.json["accepted"] is False
            assert (answer.json["notional"], answer.json["currency"], answer.json["venue"]) == (300000, "JPY", "sim")
            results = {check["check"]: check["passed"] for check in answer.json["checks"]}
            assert results == {
                "KILL_SWITCH": True,
                "RISK_RATE": True,
                "UNSUPPORTED_BY_VENUE": True,
                "RISK_MAX_QTY": False,
                "MAX_ORDER_SIZE": True,
                "RISK_MAX_NOTIONAL": False,
                "COLLAR": True,
                "MIN_ORDER_SIZE": True,
                "DUPLICATE_CONTENT": True,
            }
        assert (await gateway.get("/orders")).json["orders"] == []
        placed = await gateway.request("POST", "/orders?dryRun=false", body=order | {"qty": 1000, "price": 100})
        assert placed.status == 202
        answer = await gateway.request("POST", "/orders?dryRun=true", body=order | {"qty": 1000, "price": 100})
        failed = [check["check"] for check in answer.json["checks"] if not check["passed"]]
        assert failed == ["RISK_RATE", "DUPLICATE_CONTENT"]


@pytest.mark.parametrize("query", ["dryrun=true", "dryRun=yes", "dryRun=", "dryRun=true&dryRun=true", "x=1"])
async def test_a_misspelt_dry_run_places_nothing(embedded: RunningGateway, query: str) -> None:
    answer = await embedded.request("POST", f"/orders?{query}", body=MARKET)
    assert (answer.status, answer.json["reason"]) == (422, "VALIDATION_ERROR")
    assert (await embedded.get("/orders")).json["orders"] == []


async def test_an_account_over_its_rate_is_told_when_to_repeat_and_its_key_stays_free(
    tmp_path: Path, engine_settings: dict[str, str]
) -> None:
    async with running_gateway(tmp_path, RISK_RATE_PER_SEC="0.01", RISK_RATE_BURST="2", **engine_settings) as gateway:
        first = await gateway.place(key="one")
        for _ in range(5):  # a repeat takes no token
            assert (await gateway.place(key="one")).json == first.json
        assert (await gateway.place(key="two")).status == 202
        rejected = await gateway.place(key="three")
        assert (rejected.status, rejected.json["reason"]) == (422, "RISK_RATE")
        assert "orderId" not in rejected.json
        assert 90 < int(rejected.headers["Retry-After"]) <= 100
        assert (await gateway.place(key="one")).json == first.json  # also while there is none left
        assert (await gateway.place(key="two", account="other")).status == 202
        assert len((await gateway.get("/orders")).json["orders"]) == 2
        limited = await do_order(gateway, "do-1", account="demo")
        assert (limited.status, limited.json["error"], limited.json["reason_code"]) == (
            429,
            "RATE_LIMITED",
            "RISK_RATE",
        )


async def test_an_equal_order_within_the_window_is_rejected_whatever_its_key(
    tmp_path: Path, engine_settings: dict[str, str]
) -> None:
    async with running_gateway(tmp_path, RISK_DUPLICATE_WINDOW_SEC="3600", **engine_settings) as gateway:
        answers = await asyncio.gather(*(gateway.place(key=f"key-{number}") for number in range(20)))
        assert sorted(answer.status for answer in answers) == [202] + [422] * 19
        assert {answer.json.get("reason") for answer in answers} == {None, "DUPLICATE_CONTENT"}
        assert (await gateway.place()).json["reason"] == "DUPLICATE_CONTENT"
        accepted = next(number for number, answer in enumerate(answers) if answer.status == 202)
        assert (await gateway.place(key=f"key-{accepted}")).status == 202  # a repeat is not a duplicate
        assert (await gateway.place(qty=1001)).status == 202
        assert (await gateway.place(account="other")).status == 202


async def test_a_rejected_order_does_not_take_the_place_of_an_equal_one(tmp_path: Path) -> None:
    limits = {"RISK_DUPLICATE_WINDOW_SEC": "3600", "SWITCHYARD_CONFIG": str(tmp_path / "rules.yaml")}
    (tmp_path / "rules.yaml").write_text("risk: {max_qty_by_account: {small: 10}}")
    async with running_gateway(tmp_path, **limits) as gateway:
        for _ in range(2):
            assert (await gateway.place(account="small")).json["reason"] == "RISK_MAX_QTY"


async def test_rejections_are_counted_by_reason(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, **LIMIT) as gateway:
        for key in ("a", "a", None):
            await gateway.place(qty=2000, key=key)
        page = (await gateway.request("GET", "/metrics", account=None)).body.decode()
        assert figures_of(page)["risk_rejections_total{RISK_MAX_QTY}"] == 2


async def test_guards_of_the_catalogue_hold(tmp_path: Path) -> None:
    (tmp_path / "guards.yaml").write_text(
        "instruments:\n"
        "  USDJPY: {lot: 100000, tick: 0.001, quote: JPY, min_qty: 1000, max_qty: 50000, collar_percent: 5}\n"
        "risk: {restricted_symbols: [BTC]}\n"
    )
    async with running_gateway(tmp_path, SWITCHYARD_CONFIG=str(tmp_path / "guards.yaml")) as gateway:
        assert (await gateway.place(qty=999)).json["reason"] == "MIN_ORDER_SIZE"
        assert (await gateway.place(qty=50001)).json["reason"] == "MAX_ORDER_SIZE"
        assert (await gateway.place(type="LIMIT", price=1)).json["reason"] == "COLLAR"
        assert (await gateway.place(symbol="BTC", qty=1)).json["reason"] == "RESTRICTED"
        assert (await gateway.place()).status == 202


async def test_the_command_shows_each_check_and_exits_with_1_if_one_fails(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, **LIMIT) as gateway:

        async def dry_run(qty: int) -> subprocess.CompletedProcess[str]:
            words = ("order", "buy", "USDJPY", str(qty), "--dry-run", "--url", gateway.url)
            return await asyncio.to_thread(run_command, *words, JWT_HS256_SECRET=SECRET)

        fails = await dry_run(2000)
        assert fails.returncode == 1, fails.stderr
        assert "RISK_MAX_QTY" in fails.stdout and "FAIL" in fails.stdout and "nothing was placed" in fails.stdout
        passes = await dry_run(1000)
        assert passes.returncode == 0 and "FAIL" not in passes.stdout
        assert (await gateway.get("/orders")).json["orders"] == []


async def test_both_clients_check_an_order_and_name_the_rejected_one(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, **LIMIT) as gateway, AsyncClient(gateway.url, gateway.token()) as client:
        assert (await client.dry_run("USDJPY", "BUY", 1000)).accepted
        with pytest.raises(ApiError) as rejected:
            await client.place("USDJPY", "BUY", 2000)
        assert rejected.value.reason == "RISK_MAX_QTY"
        assert rejected.value.message == "qty 2000 is above 1000 (RISK_MAX_QTY)"
        assert rejected.value.order_id is not None
        assert (await client.order(rejected.value.order_id)).status == "REJECTED"
        assert (await client.events(order_id=rejected.value.order_id).__anext__()).type == "RiskRejected"

        def check() -> DryRun:
            with Client(gateway.url, gateway.token()) as sync_client:
                return sync_client.dry_run("USDJPY", "BUY", 2000)

        shown = await asyncio.to_thread(check)
        assert [check.reason for check in shown.checks if not check.passed] == ["RISK_MAX_QTY"]


async def test_a_stream_shows_the_rejected_order(tmp_path: Path, engine_settings: dict[str, str]) -> None:
    async with (
        running_gateway(tmp_path, **LIMIT, **engine_settings) as gateway,
        AsyncClient(gateway.url, gateway.token()) as client,
    ):
        order_id = (await gateway.place(qty=2000)).json["orderId"]
        async with aclosing(client.stream(last_event_id="0")) as events:
            async for event in events:
                if isinstance(event, OrderUpdate):
                    break
        assert isinstance(event, OrderUpdate)
        assert (event.order.order_id, event.order.status, event.id) == (order_id, "REJECTED", "1")


async def test_two_gateways_with_one_redis_share_the_rate_of_an_account(
    tmp_path: Path, database_url: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where Redis does not answer within milliseconds, as on a busy machine, each gateway counts alone.
    patient = {**(RedisHost.__init__.__kwdefaults__ or {}), "connect_seconds": 10.0, "read_seconds": 10.0}
    monkeypatch.setattr(RedisHost.__init__, "__kwdefaults__", patient)
    redis_server.flush()
    settings = {
        "SWITCHYARD_DATABASE_URL": database_url,
        "SWITCHYARD_REDIS_URL": redis_server.url,
        "RISK_RATE_PER_SEC": "0.001",
        "RISK_RATE_BURST": "10",
        "SWITCHYARD_WORKER": "false",
    }
    async with (
        running_gateway(tmp_path / "one", **settings) as one,
        running_gateway(tmp_path / "two", **settings) as two,
    ):
        answers = await asyncio.gather(*((one, two)[number % 2].place(key=f"k-{number}") for number in range(30)))
        assert sorted(answer.status for answer in answers) == [202] * 10 + [422] * 20
