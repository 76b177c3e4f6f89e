"""The idempotency metrics, their log lines, and the alarm for a high duplicate rate."""

from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client import generate_latest

from switchyard.flow.intake.derived import Reaper
from tests.support.figures import figures_of
from tests.support.gateway import CheckedResponse, RunningGateway, running_gateway
from tests.support.polling import until
from tests.support.redis import RedisServer

ORDER = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "qty": 1000, "price": 1000}


async def place(gateway: RunningGateway, headers: dict[str, str], **changes: Any) -> CheckedResponse:
    return await gateway.request("POST", "/orders", body={**ORDER, **changes}, headers=headers)


async def figures(gateway: RunningGateway) -> dict[str, float]:
    """The values of this moment; a page of `/metrics` may be a second old."""
    await gateway.engine.observer.refresh()
    return figures_of(generate_latest(gateway.engine.metrics.registry).decode())


@pytest.mark.parametrize("cache", ["memory", "redis"])
async def test_the_metrics_of_the_specification_have_the_right_values(
    tmp_path: Path, redis_server: RedisServer, cache: str
) -> None:
    redis_server.flush()
    settings = {"SWITCHYARD_REDIS_URL": redis_server.url} if cache == "redis" else {}
    async with running_gateway(tmp_path, **settings) as gateway:
        derive = {"Idempotency-Derive": "true"}
        first = (await place(gateway, derive)).json["orderId"]
        await gateway.until_status(first, "FILLED")
        repeats = 0

        async def is_from_cache() -> bool:
            nonlocal repeats
            repeats += 1
            return bool((await place(gateway, derive)).json["fromCache"])

        await until(is_from_cache)
        await place(gateway, {}, qty=7000)
        found = await figures(gateway)
        assert found["orders_placed_total"] == 2
        assert found["idempotency_duplicate_orders_prevented_total"] == repeats
        assert found["idempotency_cache_hits_total"] == 1
        assert found["idempotency_cache_misses_total"] == repeats
        kinds = ("unavailable", "refused", "wrong_entry", "dropped")
        assert {f"idempotency_cache_errors_total{{{kind}}}" for kind in kinds} <= set(found)
        assert found["idempotency_key_generation_duration_ms_count"] == 1 + repeats
        # Deriving a key takes microseconds; the limit leaves room for a busy machine.
        assert found["idempotency_key_generation_duration_ms_sum"] / (1 + repeats) < 10
        assert found["idempotency_collisions_total"] == found["idempotency_expired_keys_reused_total"] == 0
        assert found["idempotency_cache_size"] == 1
        assert found["idempotency_cache_entries{completed}"] == 1
        assert found["idempotency_cache_hit_rate"] == pytest.approx(1 / (1 + repeats))
        assert 0 <= found["idempotency_cache_oldest_seconds"] < 120  # to the minute on Redis
        assert found["idempotency_cache_expired_entries"] == found["idempotency_cache_expirations_total"] == 0
        assert (found["redis_memory_bytes"] > 100_000) == (cache == "redis")


async def test_disabled_metrics_stay_at_zero(tmp_path: Path) -> None:
    untracked = {
        "IDEMPOTENCY_MONITORING_TRACK_CACHE_HIT_RATE": "false",
        "IDEMPOTENCY_MONITORING_TRACK_KEY_GENERATION": "false",
    }
    async with running_gateway(tmp_path, **untracked) as gateway:
        for _ in range(3):
            await place(gateway, {"Idempotency-Derive": "true"})
        found = await figures(gateway)
        assert found["idempotency_cache_misses_total"] == found["idempotency_key_generation_duration_ms_count"] == 0
        assert found["idempotency_duplicate_orders_prevented_total"] == 2


@pytest.mark.parametrize("alerts", [True, False])
async def test_a_high_duplicate_rate_is_logged_once(tmp_path: Path, alerts: bool) -> None:
    settings = {
        "IDEMPOTENCY_MONITORING_DUPLICATE_RATE_THRESHOLD": "0.25",
        "IDEMPOTENCY_MONITORING_ALERT_ON_HIGH_DUPLICATE_RATE": str(alerts).lower(),
    }
    async with running_gateway(tmp_path, **settings) as gateway:
        with structlog.testing.capture_logs() as logs:
            for number in range(20):
                await place(gateway, {"Idempotency-Key": f"key-{number}"})
            for _ in range(5):
                await place(gateway, {"Idempotency-Key": "key-0"})
            assert not [line for line in logs if line["event"] == "duplicate_rate_high"], "5 to 20 orders are allowed"
            for _ in range(5):
                await place(gateway, {"Idempotency-Key": "key-0"})
        alarms = [line for line in logs if line["event"] == "duplicate_rate_high"]
        assert len(alarms) == (1 if alerts else 0)
        for alarm in alarms:
            assert (alarm["log_level"], alarm["duplicates"], alarm["orders"]) == ("error", 6, 20)


async def test_duplicates_are_logged_unless_the_settings_disable_it(tmp_path: Path) -> None:
    for number, (logs_them, expected) in enumerate((("true", 1), ("false", 0))):
        folder = tmp_path / str(number)
        async with running_gateway(folder, IDEMPOTENCY_BEHAVIOR_LOG_DUPLICATES=logs_them) as gateway:
            with structlog.testing.capture_logs() as logs:
                orders = [(await place(gateway, {"Idempotency-Key": "k"})).json["orderId"] for _ in range(2)]
            lines = [line for line in logs if line["event"] == "duplicate_prevented"]
            assert [(line["order_id"], line["account_id"]) for line in lines] == [(orders[0], "demo")] * expected


async def test_expired_keys_of_final_orders_are_removed_and_can_be_reused(
    tmp_path: Path, engine_settings: dict[str, str]
) -> None:
    settings = {**engine_settings, "IDEMPOTENCY_TTL_SEC": "1"}
    async with running_gateway(tmp_path, **settings) as gateway:
        engine = gateway.engine
        reaper = Reaper(engine.keys, engine.clock, engine.metrics)
        filled = (await place(gateway, {"Idempotency-Key": "ended"})).json["orderId"]
        resting = (await place(gateway, {"Idempotency-Key": "rests"}, price=1)).json["orderId"]
        await gateway.until_status(filled, "FILLED")
        await gateway.until_status(resting, "WORKING")
        removed = 0

        async def is_removed() -> bool:
            nonlocal removed
            removed += await reaper.run_once()
            return removed > 0

        await until(is_removed)
        assert removed == (await figures(gateway))["idempotency_keys_expired_total"] == 1
        with structlog.testing.capture_logs() as logs:
            again = (await place(gateway, {"Idempotency-Key": "ended"})).json["orderId"]
        assert again != filled
        assert [line["idempotency_key"] for line in logs if line["event"] == "expired_key_reused"] == ["ended"]
        assert (await figures(gateway))["idempotency_expired_keys_reused_total"] == 1
        accepted = (await gateway.get(f"/orders/{again}/events")).json["events"][0]
        assert accepted["data"]["idempotency"]["generation"] == 1, (
            "the client order id of generation 0 belongs to the first order"
        )
        assert (await place(gateway, {"Idempotency-Key": "rests"}, price=1)).json["orderId"] == resting
        await gateway.until_status(again, "FILLED")
