"""Stop and DAY orders over HTTP and the SDK; a venue that does not have them gets none."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from switchyard.client import ApiError, place_order_with_idempotency
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.threaded_client import make_client

STOP: dict[str, Any] = {"type": "STOP", "stopPrice": 149}
# Only its declaration matters: no order gets there.
BROKER = {"VENUE_URL_SIM": "http://127.0.0.1:1", "VENUE_QUOTES_SIM": "none"}


async def test_a_broker_gets_no_order_of_a_kind_that_it_did_not_declare(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, **BROKER) as gateway:
        first = await gateway.place("key", **STOP)
        again = await gateway.place("key", **STOP)
        assert (first.status, first.json["reason"], again.json) == (422, "UNSUPPORTED_BY_VENUE", first.json)
        assert first.json["detail"] == (
            "sim does not take type STOP: it takes LIMIT, MARKET (VENUE_ORDER_TYPES_SIM)"
        )  # fmt: skip
        assert again.headers["Idempotent-Replayed"] == "true"
        stored = await gateway.order(first.json["orderId"])
        assert (stored["status"], stored["stopPrice"]) == ("REJECTED", 149)
        day = await gateway.place(type="LIMIT", price=150, timeInForce="DAY")
        assert (day.json["reason"], "timeInForce DAY" in day.json["detail"]) == ("UNSUPPORTED_BY_VENUE", True)
        dry = await gateway.request(
            "POST", "/orders?dryRun=true", body={"symbol": "USDJPY", "side": "SELL", "qty": 1000, **STOP}
        )
        assert [check["check"] for check in dry.json["checks"] if not check["passed"]] == ["UNSUPPORTED_BY_VENUE"]
        assert (await gateway.place(type="LIMIT", price=150)).status == 202


async def test_a_key_that_has_an_order_keeps_it_after_the_venue_took_the_kind_back(tmp_path: Path) -> None:
    taken = {"VENUE_ORDER_TYPES_SIM": "LIMIT,STOP", **BROKER}
    async with running_gateway(tmp_path, **taken) as gateway:
        accepted = await gateway.place("key", **STOP)
        assert accepted.status == 202
    async with running_gateway(tmp_path, **BROKER) as gateway:
        again = await gateway.place("key", **STOP)
        assert (again.status, again.json["orderId"]) == (202, accepted.json["orderId"])


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_the_sdk_places_stop_orders_and_day_orders(embedded: RunningGateway, kind: str) -> None:
    async with make_client(kind, embedded.url, embedded.token("demo")) as client:
        placed = await client.place("USDJPY", "SELL", 1000, stop_price="100.5", limit_price=100, time_in_force="DAY")
        waiting = await client.order(placed.order_id)
        assert (waiting.type, waiting.stop_price, waiting.price) == ("STOP_LIMIT", Decimal("100.5"), Decimal(100))
        assert waiting.expires_at is not None and waiting.expires_at > waiting.accepted_at
        checked = await client.dry_run("USDJPY", "SELL", 1000, stop_price=100)
        assert checked.accepted
        with pytest.raises(ApiError, match="timeInForce"):
            await client.place("USDJPY", "SELL", 1000, stop_price=100, time_in_force="IOC")
        filled = await client.place("USDJPY", "BUY", 1000, stop_price=1)
        assert (await embedded.until_status(filled.order_id, "FILLED"))["type"] == "STOP"


async def test_equal_content_needs_an_equal_stop_price(embedded: RunningGateway) -> None:
    async def place(stop_price: Any) -> Any:
        return await place_order_with_idempotency(
            "demo", "USDJPY", "SELL", 1000, order_type="STOP", stop_price=stop_price,
            base_url=embedded.url, token=embedded.token("demo"),
        )  # fmt: skip

    first, again, other = await place(100), await place(100.0), await place("100.001")
    assert (first.success, again.orderId) == (True, first.orderId)
    assert (other.success, other.orderId == first.orderId) == (True, False)
