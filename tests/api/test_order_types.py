"""Orders that only some venues have, over HTTP and the SDK; a venue that does not have them gets none."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from switchyard.client import ApiError, place_order_with_idempotency
from switchyard.domain.errors import InvalidField
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


END = "2099-12-31T17:00:00Z"
WISHES: dict[str, dict[str, Any]] = {
    "postOnly": {"postOnly": True},
    "reduceOnly": {"reduceOnly": True},
    "displayQty": {"displayQty": 100},
    "timeInForce GTD": {"timeInForce": "GTD", "expireAt": END},
}


@pytest.mark.parametrize("wish", WISHES)
async def test_a_venue_that_lacks_a_member_of_an_order_gets_no_such_order(tmp_path: Path, wish: str) -> None:
    async with running_gateway(tmp_path, **BROKER) as gateway:
        first = await gateway.place("key", type="LIMIT", price=150, **WISHES[wish])
        assert (first.status, first.json["reason"]) == (422, "UNSUPPORTED_BY_VENUE")
        assert first.json["detail"].startswith(f"sim does not take {wish}"), first.json
        assert first.json["detail"].endswith("_SIM)"), first.json
        assert (await gateway.order(first.json["orderId"]))["status"] == "REJECTED"
        plain = await gateway.place(type="LIMIT", price=150)
        assert plain.status == 202
        shown = await gateway.order(plain.json["orderId"])
        assert {"postOnly", "reduceOnly", "displayQty", "expiresAt"}.isdisjoint(shown)


async def test_a_venue_that_declares_them_takes_them_and_the_order_shows_them(tmp_path: Path) -> None:
    declared = {
        "VENUE_POST_ONLY_SIM": "true",
        "VENUE_REDUCE_ONLY_SIM": "true",
        "VENUE_DISPLAY_QTY_SIM": "true",
        "VENUE_TIMES_IN_FORCE_SIM": "GTC,GTD",
    }
    every = {name: value for wish in WISHES.values() for name, value in wish.items()}
    async with running_gateway(tmp_path, **BROKER, **declared) as gateway:
        placed = await gateway.place("key", type="LIMIT", price=150, **every)
        again = await gateway.place("key", type="LIMIT", price=150, **every | {"expireAt": "2100-01-01T02:00:00+09:00"})
        assert (placed.status, again.json["orderId"]) == (202, placed.json["orderId"])
        shown = await gateway.order(placed.json["orderId"])
        members = {name: shown[name] for name in ("postOnly", "reduceOnly", "displayQty", "timeInForce", "expiresAt")}
        assert members == {
            "postOnly": True, "reduceOnly": True, "displayQty": 100, "timeInForce": "GTD", "expiresAt": END,
        }  # fmt: skip
        smaller = await gateway.request(
            "PATCH", f"/orders/{shown['orderId']}", body={"qty": 99}, headers={"Idempotency-Key": "amend"}
        )
        assert (smaller.status, smaller.json["field"]) == (422, "qty")
        assert "displayQty, which is 100" in smaller.json["message"]


async def test_an_order_keeps_what_it_asks_for_in_its_event_and_its_row(gateway: RunningGateway) -> None:
    asks: dict[str, Any] = {"postOnly": True, "timeInForce": "GTD", "expireAt": "2099-12-31T17:00:00.000001Z"}
    placed = await gateway.place("key", type="LIMIT", price=1, **asks)
    shown = await gateway.until_status(placed.json["orderId"], "WORKING")
    [event, *_] = (await gateway.get(f"/orders/{shown['orderId']}/events")).json["events"]
    for each in (shown, event["data"]["order"]):
        assert (each["postOnly"], each["timeInForce"], each["expiresAt"]) == tuple(asks.values())
        assert {"displayQty", "reduceOnly", "venueReduceOnly"}.isdisjoint(each)


@pytest.mark.parametrize("route", ["broker|sim", "best:broker|sim"])
async def test_an_order_goes_to_the_venue_of_its_route_that_has_what_it_asks_for(tmp_path: Path, route: str) -> None:
    lacks = {
        "SOR_VENUES": "broker,sim",
        "SOR_DEFAULT_VENUE": route,
        "VENUE_URL_BROKER": "http://127.0.0.1:1",
        "VENUE_QUOTES_BROKER": "none",
        "VENUE_BREAKER_FAULTS_BROKER": "0",
    }
    async with running_gateway(tmp_path, **lacks) as gateway:
        asks = [await gateway.place(type="LIMIT", price=1, **WISHES[wish]) for wish in ("postOnly", "timeInForce GTD")]
        venues = [(await gateway.order(each.json["orderId"]))["venue"] for each in asks]
        assert venues == ["sim", "sim"]
        nowhere = await gateway.place(type="LIMIT", price=1, **WISHES["displayQty"])
        assert (nowhere.status, nowhere.json["reason"]) == (422, "UNSUPPORTED_BY_VENUE")
        if route == "broker|sim":
            plain = await gateway.place(type="LIMIT", price=1)
            assert (await gateway.order(plain.json["orderId"]))["venue"] == "broker"


async def test_the_end_of_a_gtd_order_must_be_in_the_future_but_a_repeat_keeps_its_order(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        order: dict[str, Any] = {"type": "LIMIT", "price": 1, "timeInForce": "GTD"}
        for never in ("2020-01-01T00:00:00Z", "9999-12-31T23:59:59-00:01", "0001-01-01T00:00:00+00:01"):
            past = await gateway.place("past", **order, expireAt=never)
            assert (past.status, past.json["reason"], past.json["field"]) == (422, "VALIDATION_ERROR", "expireAt")
        assert (await gateway.place("past", **order, expireAt=END)).status == 202  # nothing was stored under the key
        soon = (datetime.now(UTC) + timedelta(seconds=1.5)).isoformat()
        first = await gateway.place("soon", **order, expireAt=soon)
        ended = await gateway.until_status(first.json["orderId"], "EXPIRED")
        assert (first.status, ended["reason"]) == (202, "GTD_ENDED")
        again = await gateway.place("soon", **order, expireAt=soon)
        assert (again.status, again.json["orderId"]) == (202, first.json["orderId"])
        query = {"symbol": "USDJPY", "side": "BUY", "qty": 1000, **order, "expireAt": soon}
        dry = await gateway.request("POST", "/orders?dryRun=true", body=query)
        assert (dry.status, dry.json["field"]) == (422, "expireAt")


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_the_sdk_places_post_only_and_gtd_orders(embedded: RunningGateway, kind: str) -> None:
    end = datetime(2099, 12, 31, 17, tzinfo=UTC)
    async with make_client(kind, embedded.url, embedded.token("demo")) as client:
        placed = await client.place(
            "USDJPY", "BUY", 1000, limit_price=1, time_in_force="GTD", expire_at=end, post_only=True
        )
        shown = await client.order(placed.order_id)
        assert (shown.time_in_force, shown.expires_at, shown.post_only) == ("GTD", end, True)
        assert (await embedded.until_status(placed.order_id, "WORKING"))["postOnly"] is True
        crossing = await client.place("USDJPY", "BUY", 1000, limit_price=1000, post_only=True)
        rejected = await embedded.until_status(crossing.order_id, "REJECTED")
        assert rejected["reason"] == "POST_ONLY_WOULD_TRADE"
        with pytest.raises(ApiError, match="displayQty"):
            await client.place("USDJPY", "BUY", 1000, limit_price=1, display_qty=100)
        with pytest.raises(ApiError, match="displayQty: 1001 is more than qty"):
            await client.dry_run("USDJPY", "BUY", 1000, limit_price=1, reduce_only=True, display_qty=1001)
        with pytest.raises(InvalidField, match="offset"):
            naive = end.replace(tzinfo=None)
            await client.place("USDJPY", "BUY", 1, limit_price=1, time_in_force="GTD", expire_at=naive)
