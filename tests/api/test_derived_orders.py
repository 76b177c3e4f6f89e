"""Derived keys: which requests count as repeats, which place a new order, and what a repeat is answered."""

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import structlog

from switchyard.domain.orders.keys import DERIVED_ORDER, validate_idempotency_key
from switchyard.flow.intake.derived import Reaper
from tests.support.figures import figures_of
from tests.support.gateway import CheckedResponse, RunningGateway, running_gateway
from tests.support.polling import until
from tests.support.venue_process import VenueProcess

DERIVE = {"Idempotency-Derive": "true"}
NO_WORKER = {"SWITCHYARD_WORKER": "false"}
# With less than one second a repeat could fall out of the window on a busy machine.
SHORT_WINDOW = {"IDEMPOTENCY_KEY_GENERATION_TIMESTAMP_RESOLUTION": "1000"}


async def place(gateway: RunningGateway, headers: dict[str, str] | None = None, **changes: Any) -> CheckedResponse:
    body = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000, **changes}
    return await gateway.request("POST", "/orders", body=body, headers=DERIVE if headers is None else headers)


async def figures(gateway: RunningGateway) -> dict[str, float]:
    return figures_of((await gateway.get("/metrics", account=None)).body.decode())


async def place_after_window(gateway: RunningGateway, **changes: Any) -> CheckedResponse:
    """Repeat until the window of the first request is over and a new order is placed."""
    answers: list[CheckedResponse] = []

    async def is_new() -> bool:
        answers.append(await place(gateway, **changes))
        return answers[-1].status == 202

    await until(is_new)
    return answers[-1]


async def test_a_repeat_is_processing_until_its_order_is_at_the_venue(
    tmp_path: Path, engine_settings: dict[str, str]
) -> None:
    async with running_gateway(tmp_path, **engine_settings, **NO_WORKER) as gateway:
        first = await place(gateway, type="LIMIT", price=1)
        assert first.status == 202
        assert first.json["status"] == "ACCEPTED"
        placed = await gateway.engine._database.queries.order(first.json["orderId"])
        assert placed is not None and placed.idempotency_key is not None
        assert validate_idempotency_key(placed.idempotency_key), "64 lowercase hexadecimal digits"
        repeat = await place(gateway, type="LIMIT", price=1)
        assert repeat.status == 200
        assert repeat.headers["Idempotent-Replayed"] == "true"
        assert repeat.json == {
            "success": False,
            "status": "processing",
            "message": "Order placement in progress",
            "orderId": first.json["orderId"],
            "fromCache": False,
            "originalRequestId": first.json["requestId"],
        }
    async with running_gateway(tmp_path, **engine_settings) as gateway:
        await gateway.until_status(first.json["orderId"], "WORKING")
        repeat = await place(gateway, type="LIMIT", price=1)
        assert (repeat.json["status"], repeat.json["success"]) == ("duplicate_detected", True)
        assert repeat.json["orderId"] == first.json["orderId"]


async def test_a_repeat_is_answered_while_new_orders_are_rejected_for_queue_delay(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, **NO_WORKER) as gateway:
        first = await place(gateway)

        others = count(2000)

        async def is_rejected() -> bool:
            return (await place(gateway, qty=next(others))).status == 503

        await until(is_rejected)
        assert (await place(gateway)).json["orderId"] == first.json["orderId"]
        assert (await place(gateway)).status == 200


async def test_only_a_final_order_is_answered_from_the_cache(gateway: RunningGateway) -> None:
    resting = (await place(gateway, type="LIMIT", price=1)).json["orderId"]
    filled = (await place(gateway)).json["orderId"]
    await gateway.until_status(resting, "WORKING")
    await gateway.until_status(filled, "FILLED")
    answers = [[await place(gateway), await place(gateway, type="LIMIT", price=1)] for _ in range(2)]
    assert [[answer.json["fromCache"] for answer in pair] for pair in answers] == [[False, False], [True, False]]
    assert {pair[0].json["orderId"] for pair in answers} == {filled}
    counted = await figures(gateway)
    assert (counted["idempotency_cache_hits_total"], counted["idempotency_cache_size"]) == (1, 1)
    assert counted["idempotency_cache_misses_total"] == 5
    # A resting order is cached once it is final, not before.
    await gateway.request("POST", f"/orders/{resting}/cancel")
    await gateway.until_status(resting, "CANCELED")
    repeats = [(await place(gateway, type="LIMIT", price=1)).json for _ in range(2)]
    assert [(repeat["orderId"], repeat["fromCache"]) for repeat in repeats] == [(resting, False), (resting, True)]


@pytest.fixture
async def venue(tmp_path: Path) -> AsyncIterator[VenueProcess]:
    process = VenueProcess(tmp_path / "venue")
    await process.start()
    yield process
    process.close()


@pytest.mark.parametrize("may_retry", [True, False])
async def test_an_order_that_was_provably_never_sent_can_be_placed_again(
    tmp_path: Path, venue: VenueProcess, may_retry: bool
) -> None:
    settings = {"VENUE_URL_SIM": venue.url, "IDEMPOTENCY_BEHAVIOR_ALLOW_RETRY_AFTER_FAILURE": str(may_retry).lower()}
    async with running_gateway(tmp_path, **settings) as gateway:
        await gateway.until_status((await place(gateway, side="SELL")).json["orderId"], "FILLED")
        venue.kill()
        first = (await place(gateway)).json["orderId"]
        ended = await gateway.until_status(first, "EXPIRED")
        assert ended["reason"] == "BROKER_DOWN"
        again = await place(gateway)
        if may_retry:
            assert again.status == 202
            assert again.json["orderId"] != first
        else:
            assert again.status == 200
            assert again.json["orderId"] == first
            assert (again.json["success"], again.json["status"]) == (False, "failed")
            assert again.json["message"] == "Order placement failed: BROKER_DOWN"


async def test_a_repeat_of_a_rejected_order_is_answered_as_failed(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, EXCHANGE_SIM_REJECT_ALL_SIM="true") as gateway:
        first = (await place(gateway)).json["orderId"]
        await gateway.until_status(first, "REJECTED")
        again = (await place(gateway)).json
        assert (again["orderId"], again["status"], again["success"]) == (first, "failed", False)
        # It is in the cache with its error, and answers no repeat: a failed request may be tried again.
        assert (await figures(gateway))["idempotency_cache_entries{failed}"] == 1
        once_more = (await place(gateway)).json
        assert (once_more["message"], once_more["fromCache"]) == (again["message"], False)


async def test_an_equal_order_after_the_window_is_a_new_order(tmp_path: Path, engine_settings: dict[str, str]) -> None:
    async with running_gateway(tmp_path, **engine_settings, **SHORT_WINDOW) as gateway:
        first = (await place(gateway)).json
        later = (await place_after_window(gateway)).json
        assert later["orderId"] != first["orderId"]
        assert later["requestId"] != first["requestId"]
        again = await place(gateway)
        # On a machine that pauses for a second this may be a third order; it is never the first.
        assert again.json["orderId"] != first["orderId"]
        assert (await figures(gateway)).get("idempotency_expired_keys_reused_total") == 0


async def test_reuse_of_an_expired_key_is_logged_and_counted(tmp_path: Path, engine_settings: dict[str, str]) -> None:
    settings = {**engine_settings, **SHORT_WINDOW, "IDEMPOTENCY_CACHE_TTL": "1"}
    async with running_gateway(tmp_path, **settings) as gateway:
        await place(gateway)
        with structlog.testing.capture_logs() as logs:
            await place_after_window(gateway)
        assert (await figures(gateway))["idempotency_expired_keys_reused_total"] == 1
        [line] = [line for line in logs if line["event"] == "expired_key_reused"]
        assert (line["log_level"], line["account_id"]) == ("warning", "demo")


@pytest.mark.parametrize("ttl", ["1", "3600000"])
async def test_without_retry_after_expiry_a_key_keeps_its_first_order(
    tmp_path: Path, engine_settings: dict[str, str], ttl: str
) -> None:
    settings = {
        **engine_settings,
        **SHORT_WINDOW,
        "IDEMPOTENCY_CACHE_TTL": ttl,
        "IDEMPOTENCY_BEHAVIOR_ALLOW_RETRY_AFTER_EXPIRY": "false",
    }
    async with running_gateway(tmp_path, **settings) as gateway:
        first = (await place(gateway)).json["orderId"]
        await gateway.until_status(first, "FILLED")
        await asyncio.sleep(1.1)  # until the window and the time to live are over: there is no event to wait for
        reaper = Reaper(gateway.database.keys, gateway.engine.clock, gateway.engine.metrics, kept=[DERIVED_ORDER])
        assert await reaper.run_once() == 0
        again = (await place(gateway)).json
        assert (again["orderId"], again["status"]) == (first, "duplicate_detected")


async def test_other_content_under_the_same_key_is_a_collision_and_a_new_order(
    tmp_path: Path, engine_settings: dict[str, str]
) -> None:
    async with running_gateway(tmp_path, **engine_settings) as gateway:
        contents: list[dict[str, Any]] = [{}, {"timeInForce": "FOK"}, {"tags": ["hedge"]}]
        with structlog.testing.capture_logs() as logs:
            first = [(await place(gateway, **content)).json["orderId"] for content in contents]
            counted = (await figures(gateway))["idempotency_collisions_total"]
            again = [(await place(gateway, **content)).json["orderId"] for content in contents]
        assert len(set(first)) == 3
        assert again == first, "each content finds its own order"
        critical = [line for line in logs if line["log_level"] == "critical"]
        assert [line["event"] for line in critical] == ["derived_key_collision"] * 2
        # Repeats are duplicates, not further collisions.
        assert (await figures(gateway))["idempotency_collisions_total"] == counted == 2


async def test_a_repeat_is_found_after_the_window_of_a_colliding_order(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, IDEMPOTENCY_KEY_GENERATION_TIMESTAMP_RESOLUTION="2000") as gateway:
        await place(gateway)
        await asyncio.sleep(1.5)  # shortly before the window of the first content ends
        started = time.monotonic()
        second = (await place(gateway, tags=["b"])).json["orderId"]
        await asyncio.sleep(0.6)  # right after it
        repeat = (await place(gateway, tags=["b"])).json["orderId"]
        assert repeat == second or time.monotonic() - started >= 2


@pytest.mark.parametrize("derive", ["true", "demo", "other,demo"])
async def test_the_settings_can_derive_keys_for_an_account(tmp_path: Path, derive: str) -> None:
    async with running_gateway(tmp_path, IDEMPOTENCY_DERIVE=derive) as gateway:
        first = await place(gateway, {})
        assert (await place(gateway, {})).json["orderId"] == first.json["orderId"]
        # A key in the request takes precedence over the derived one.
        keyed = [await place(gateway, {**DERIVE, "Idempotency-Key": key}) for key in ("one", "two", "two")]
        assert [answer.status for answer in keyed] == [202] * 3
        assert len({answer.json["orderId"] for answer in (first, *keyed)}) == 3
        stranger = {"Authorization": f"Bearer {gateway.token('third')}"}
        strangers = {(await place(gateway, stranger)).json["orderId"] for _ in range(2)}
        assert len(strangers) == (1 if derive == "true" else 2)


async def test_with_derived_keys_disabled_a_request_for_one_is_rejected(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, IDEMPOTENCY_ENABLED="false", IDEMPOTENCY_DERIVE="true") as gateway:
        unasked = {(await place(gateway, {})).json["orderId"] for _ in range(2)}
        assert len(unasked) == 2
        rejected = await place(gateway)
        assert (rejected.status, rejected.json["field"]) == (400, "Idempotency-Derive")
        keyed = {(await place(gateway, {**DERIVE, "Idempotency-Key": "k"})).json["orderId"] for _ in range(3)}
        assert len(keyed) == 1, "keys that the client sends work without derived keys"
        counted = await figures(gateway)
        assert counted["idempotency_cache_hits_total"] == counted["idempotency_cache_misses_total"] == 0


@pytest.mark.parametrize("value", ["yes", "", "true, true"])
async def test_idempotency_derive_must_be_true_or_false(embedded: RunningGateway, value: str) -> None:
    rejected = await place(embedded, {"Idempotency-Derive": value})
    assert (rejected.status, rejected.json["field"]) == (400, "Idempotency-Derive")


async def test_idempotency_derive_false_derives_no_key(embedded: RunningGateway) -> None:
    answers = [await place(embedded, {"Idempotency-Derive": "False"}) for _ in range(2)]
    assert [answer.status for answer in answers] == [202, 202]
    assert len({answer.json["orderId"] for answer in answers}) == 2
