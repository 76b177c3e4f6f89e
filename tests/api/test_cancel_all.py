"""`POST /orders/cancel-all`, and what an account has open, over HTTP and on the command line."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from switchyard.client import AsyncClient
from tests.support.gateway import CheckedResponse, RunningGateway, running_gateway
from tests.support.process import SECRET, run_command

RESTING: dict[str, Any] = {"type": "LIMIT", "price": 1}


async def cancel_all(gateway: RunningGateway, key: str | None = None, **body: Any) -> CheckedResponse:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await gateway.request("POST", "/orders/cancel-all", body=body, headers=headers)


async def rest(gateway: RunningGateway, **changes: Any) -> str:
    """Place an order that rests at the venue."""
    order_id: str = (await gateway.place(**RESTING | changes)).json["orderId"]
    await gateway.until_status(order_id, "WORKING")
    return order_id


async def test_all_open_orders_are_cancelled_and_a_repeat_cancels_no_newer_one(gateway: RunningGateway) -> None:
    first, second = await rest(gateway), await rest(gateway, symbol="EURUSD")
    other = (await gateway.place(account="other", **RESTING)).json["orderId"]

    answer = await cancel_all(gateway, "end-of-day")

    assert answer.status == 202
    assert [order["orderId"] for order in answer.json["orders"]] == [first, second]
    assert answer.json["requested"] + answer.json["ended"] == 2
    assert answer.json["nextCursor"] is None
    for order_id in (first, second):
        await gateway.until_status(order_id, "CANCELED")
    newer = await rest(gateway)
    again = await cancel_all(gateway, "end-of-day")
    assert again.headers["Idempotent-Replayed"] == "true"
    assert [(order["orderId"], order["result"]) for order in again.json["orders"]] == [
        (first, "CANCELED"),
        (second, "CANCELED"),
    ]
    assert (again.json["requested"], again.json["ended"]) == (0, 2)
    assert (await gateway.order(newer))["status"] == "WORKING"
    assert (await gateway.order(other, "other"))["status"] in ("ACCEPTED", "SENDING", "WORKING")
    conflict = await cancel_all(gateway, "end-of-day", symbol="USDJPY")
    assert (conflict.status, conflict.json["reason"]) == (409, "IDEMPOTENCY_CONFLICT")


async def test_filters_select_and_equal_requests_at_once_have_one_plan(gateway: RunningGateway) -> None:
    kept = await rest(gateway)
    carried = [await rest(gateway, strategy="carry", symbol=symbol) for symbol in ("USDJPY", "EURUSD")]

    answers = await asyncio.gather(
        *(cancel_all(gateway, "once", strategy="carry", symbol="EURUSD", venue="sim") for _ in range(20))
    )

    assert {tuple(order["orderId"] for order in answer.json["orders"]) for answer in answers} == {(carried[1],)}
    assert sum("Idempotent-Replayed" not in answer.headers for answer in answers) == 1
    await gateway.until_status(carried[1], "CANCELED")
    for order_id in (kept, carried[0]):
        assert (await gateway.order(order_id))["status"] == "WORKING"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"symbl": "x"}, "symbl"),
        ({"venue": "nowhere"}, "venue"),
        ({"symbol": "a b"}, "symbol"),
        ({"cursor": "x"}, "cursor"),
    ],
)
async def test_a_wrong_filter_cancels_nothing(embedded: RunningGateway, body: dict[str, Any], field: str) -> None:
    order_id = await rest(embedded)
    answer = await cancel_all(embedded, **body)
    assert (answer.status, answer.json["field"]) == (422, field)
    derived = await embedded.request("POST", "/orders/cancel-all", body={}, headers={"Idempotency-Derive": "true"})
    assert (derived.status, derived.json["field"]) == (400, "Idempotency-Derive")
    assert (await embedded.order(order_id))["status"] == "WORKING"


async def test_positions_come_in_pages_and_the_account_shows_what_is_open(gateway: RunningGateway) -> None:
    for symbol in ("USDJPY", "EURUSD", "GBPUSD"):
        placed = await gateway.place(symbol=symbol)
        await gateway.until_status(placed.json["orderId"], "FILLED")
    closed = await gateway.request("POST", "/positions/GBPUSD/close", body={})
    await gateway.until_status(closed.json["orderId"], "FILLED")
    order_id = await rest(gateway)

    page = (await gateway.get("/positions?limit=1")).json
    rest_of_it = (await gateway.get(f"/positions?limit=5&cursor={page['nextCursor']}")).json
    every = (await gateway.get("/positions?flat=true")).json["positions"]
    account = (await gateway.get("/account?accountId=demo")).json

    assert [position["symbol"] for position in page["positions"]] == ["EURUSD"]
    assert [position["symbol"] for position in rest_of_it["positions"]] == ["USDJPY"]
    assert rest_of_it["nextCursor"] is None
    assert [(position["symbol"], position["qty"]) for position in every] == [
        ("EURUSD", 1000),
        ("GBPUSD", 0),
        ("USDJPY", 1000),
    ]
    assert account["positions"] == [position for position in every if position["qty"]]
    assert [order["orderId"] for order in account["orders"]] == [order_id]
    assert (account["hasMoreOrders"], account["exposure"]["openOrders"]) == (False, 1)
    for path in ("/positions?limit=501", "/positions?flat=yes", "/account?symbol=USDJPY"):
        assert (await gateway.get(path)).status == 422


async def test_the_client_cancels_all(embedded: RunningGateway) -> None:
    order_id = await rest(embedded)
    async with AsyncClient(embedded.url, embedded.token()) as client:
        result = await client.cancel_all(symbol="USDJPY")
    assert [order.order_id for order in result.orders] == [order_id]


async def test_the_commands_show_and_close_what_is_open(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        placed = await gateway.place(qty=1000)
        await gateway.until_status(placed.json["orderId"], "FILLED")
        resting = await rest(gateway)
        environment = {
            "JWT_HS256_SECRET": SECRET,
            "SWITCHYARD_DATA_DIR": str(tmp_path / "var"),
            "SWITCHYARD_TOKEN": gateway.token(),
        }

        async def run(*words: str) -> str:
            # In a process of its own: in this one, the gateway's log would be in the command's output.
            done = await asyncio.to_thread(run_command, *words, **environment)
            assert done.returncode == 0, done.stderr
            return done.stdout

        at = ("--url", gateway.url)
        assert "USDJPY      1000" in await run("positions", *at)
        assert "gross exposure" in await run("account", *at)
        assert (await run("cancel-all", *at)).startswith(f"{resting} USDJPY ")
        closed = await run("close", "USDJPY", "--qty", "400", *at)
        assert "SELL 400 USDJPY market IOC" in closed
        order_id = closed.split()[0]
        await gateway.until_status(order_id, "FILLED")
        told = await run("explain", order_id[-8:], *at)
        assert told == await run("explain", order_id, "--offline")
        assert "ended FILLED: 400 of 400 filled" in told
        missing = await asyncio.to_thread(run_command, "explain", "ord_1", "--offline", **environment)
        assert missing.returncode == 2 and "the database has no order 'ord_1'" in missing.stderr
