"""`POST /positions/{symbol}/close`: one order that can only reduce the position."""

import asyncio
from typing import Any

from tests.support.gateway import CheckedResponse, RunningGateway


async def close(
    gateway: RunningGateway, symbol: str = "USDJPY", key: str | None = None, account: str = "demo", **body: Any
) -> CheckedResponse:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await gateway.request("POST", f"/positions/{symbol}/close", account=account, body=body, headers=headers)


async def hold(gateway: RunningGateway, side: str = "BUY", qty: int = 1000) -> None:
    """Bring the account into a position."""
    placed = await gateway.place(side=side, qty=qty)
    await gateway.until_status(placed.json["orderId"], "FILLED")


async def test_a_close_sells_the_whole_position_and_a_repeat_gets_the_same_order(gateway: RunningGateway) -> None:
    await hold(gateway)

    first = await close(gateway, key="flat")
    order = await gateway.until_status(first.json["orderId"], "FILLED")
    again = await close(gateway, key="flat")

    assert (first.status, first.json["status"]) == (202, "ACCEPTED")
    assert (order["side"], order["type"], order["qty"], order["reduceOnly"]) == ("SELL", "MARKET", 1000, True)
    assert (again.status, again.json) == (202, first.json)
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    gone = await close(gateway, key="another")
    assert (gone.status, gone.json) == (404, {"status": "NOT_FOUND", "reason": "NOT_FOUND"})


async def test_fifty_closes_at_once_make_one_order(gateway: RunningGateway) -> None:
    await hold(gateway, "SELL")

    answers = await asyncio.gather(*(close(gateway, key="same") for _ in range(25)))
    answers += await asyncio.gather(*(close(gateway, key=f"other-{number}") for number in range(25)))

    same = answers[:25]
    assert {answer.status for answer in same} == {202}
    assert len({answer.json["orderId"] for answer in same}) == 1
    assert {answer.status for answer in answers[25:]} <= {404, 409}
