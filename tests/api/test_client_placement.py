"""`place_order_with_idempotency`: orders without a caller-supplied key, deduplicated by their content."""

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest

from switchyard.client import AsyncClient, OrderPlacementResult, Retry, place_order_with_idempotency
from switchyard.domain.errors import InvalidField, SettingError
from tests.support.faulty_proxy import FaultyProxy, faulty_proxy
from tests.support.gateway import RunningGateway
from tests.support.ports import free_port

# Short delays: the tests need the retries, not the pauses.
QUICK = Retry(first_seconds=0.001, seconds_max=0.01)


@pytest.fixture
async def proxy(embedded: RunningGateway) -> AsyncIterator[FaultyProxy]:
    async with faulty_proxy(embedded.url) as proxy:
        yield proxy


async def place(gateway: RunningGateway, url: str | None = None, **changes: Any) -> OrderPlacementResult:
    order: dict[str, Any] = {"account_id": "demo", "symbol": "USDJPY", "side": "BUY", "quantity": 1000.0, **changes}
    return await place_order_with_idempotency(
        **order, base_url=url or gateway.url, token=gateway.token("demo"), retry=QUICK
    )


async def orders(gateway: RunningGateway) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await gateway.get("/orders?limit=500")).json["orders"]
    return listed


async def test_the_same_order_within_a_minute_is_placed_once(embedded: RunningGateway) -> None:
    first = await place(embedded)
    assert (first.success, first.status, first.fromCache) == (True, "placed", False)
    assert first.orderId is not None
    await embedded.until_status(first.orderId, "FILLED")
    for from_cache in (False, True, True):
        again = await place(embedded, quantity=Decimal("1000.00"), side="buy", order_type="market")
        assert again == OrderPlacementResult(
            success=True,
            status="duplicate_detected",
            message="Order already placed",
            orderId=first.orderId,
            fromCache=from_cache,
            originalRequestId=first.requestId,
        )
    assert [order["orderId"] for order in await orders(embedded)] == [first.orderId]


async def test_every_field_of_the_order_arrives_exactly(embedded: RunningGateway) -> None:
    placed = await place(embedded, symbol="EURUSD", side="SELL", order_type="LIMIT", quantity=2000, limit_price=1.3)
    [order] = (await embedded.get("/orders")).json["orders"]
    assert order["orderId"] == placed.orderId
    assert (order["symbol"], order["side"], order["type"]) == ("EURUSD", "SELL", "LIMIT")
    # As a binary float, 1.3 is 1.3000000000000000444…
    assert (order["qty"], order["price"], order["timeInForce"]) == (2000, 1.3, "GTC")


async def test_orders_that_differ_are_each_placed(embedded: RunningGateway) -> None:
    different: list[dict[str, Any]] = [
        {},
        {"side": "SELL"},
        {"quantity": 2000},
        {"symbol": "EURUSD"},
        {"order_type": "LIMIT", "limit_price": 150},
        {"order_type": "LIMIT", "limit_price": 151},
    ]
    placed = [await place(embedded, **changes) for changes in different]
    assert {result.status for result in placed} == {"placed"}
    assert len(await orders(embedded)) == len(different)


@pytest.mark.parametrize("fault", ["lose_answer", "be_unavailable"])
async def test_retries_of_the_client_place_no_second_order(
    embedded: RunningGateway, proxy: FaultyProxy, fault: str
) -> None:
    getattr(proxy, fault)(times=3)
    result = await place(embedded, proxy.url)
    assert proxy.headers("Idempotency-Derive") == ["true"] * 4
    assert proxy.headers("Idempotency-Key") == [None] * 4
    assert result.status in ("processing", "duplicate_detected")
    assert [order["orderId"] for order in await orders(embedded)] == [result.orderId]


async def test_concurrent_equal_calls_place_one_order(embedded: RunningGateway) -> None:
    results = await asyncio.gather(*(place(embedded) for _ in range(50)))
    assert sum(result.status == "placed" for result in results) == 1
    assert len({result.orderId for result in results}) == 1
    assert len(await orders(embedded)) == 1


async def test_an_order_in_doubt_is_reported_and_the_same_call_finds_it(
    embedded: RunningGateway, proxy: FaultyProxy
) -> None:
    proxy.lose_answer(times=QUICK.attempts_max)
    result = await place(embedded, proxy.url)
    assert (result.success, result.status, result.orderId) == (False, "failed", None)
    assert "in doubt" in result.message
    assert "repeat the same call" in result.message
    repeated = await place(embedded, proxy.url)
    assert [order["orderId"] for order in await orders(embedded)] == [repeated.orderId]


async def test_no_retry_is_sent_that_could_arrive_after_the_window(
    embedded: RunningGateway, proxy: FaultyProxy
) -> None:
    proxy.lose_answer(times=2)
    result = await place(embedded, proxy.url, timeout_seconds=10.0, window_seconds=5.0)
    assert "in doubt" in result.message
    assert len(proxy.headers("Idempotency-Derive")) == 1


async def test_an_unreachable_gateway_is_a_failure_without_doubt(embedded: RunningGateway) -> None:
    result = await place(embedded, f"http://127.0.0.1:{free_port()}")
    assert (result.success, result.status) == (False, "failed")
    assert "no connection" in result.message
    assert "doubt" not in result.message


async def test_a_rejection_is_a_failure_with_the_message_of_the_gateway(embedded: RunningGateway) -> None:
    for changes, text in (
        ({"order_type": "STOP", "stop_price": "150.0001"}, "stopPrice"),
        ({"order_type": "LIMIT"}, "price: required"),
        ({"side": "HOLD"}, "side"),
    ):
        result = await place(embedded, **changes)
        assert (result.success, result.status, result.orderId) == (False, "failed", None)
        assert text in result.message
        assert "doubt" not in result.message
    token = embedded.token("demo")[:-2]
    rejected = await place_order_with_idempotency("demo", "USDJPY", "BUY", 1000, base_url=embedded.url, token=token)
    assert (rejected.status, "TOKEN" in rejected.message) == ("failed", True)


async def test_an_account_that_does_not_match_the_token_is_rejected(embedded: RunningGateway) -> None:
    with pytest.raises(InvalidField, match=r"account_id: 'other'.*'demo'"):
        await place(embedded, account_id="other")


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"quantity": float("nan")}, "quantity"),
        ({"quantity": 0}, "quantity"),
        ({"quantity": True}, "quantity"),
        ({"quantity": "1_000"}, "quantity"),
        ({"quantity": Decimal("0.000000001")}, "quantity"),
        ({"order_type": "LIMIT", "limit_price": float("inf")}, "limit_price"),
        ({"order_type": "STOP", "stop_price": -1}, "stop_price"),
    ],
)
async def test_an_invalid_amount_raises_an_error_that_names_the_argument(
    embedded: RunningGateway, changes: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidField) as caught:
        await place(embedded, **changes)
    assert caught.value.field == name


async def test_url_and_token_default_to_the_environment(
    embedded: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWITCHYARD_TOKEN", raising=False)
    with pytest.raises(SettingError, match="SWITCHYARD_TOKEN"):
        await place_order_with_idempotency("demo", "USDJPY", "BUY", 1000)
    monkeypatch.setenv("SWITCHYARD_TOKEN", embedded.token("demo"))
    monkeypatch.setenv("SWITCHYARD_HOST", "0.0.0.0")
    monkeypatch.setenv("SWITCHYARD_PORT", embedded.url.rpartition(":")[2])
    assert (await place_order_with_idempotency("demo", "USDJPY", "BUY", 1000)).status == "placed"


async def test_a_client_can_place_by_content_and_by_key(embedded: RunningGateway) -> None:
    async with AsyncClient(embedded.url, embedded.token("demo")) as client:
        first = await client.place_by_content("USDJPY", "BUY", 5000)
        again = await client.place_by_content("USDJPY", "BUY", 5000)
        keyed = await client.place("USDJPY", "BUY", 5000)
    assert first.orderId == again.orderId != keyed.order_id
