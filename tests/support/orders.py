"""Orders over HTTP, as a client of a `switchyard` process places and reads them."""

from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from tests.support.polling import until
from tests.support.process import Process

FINAL = {"FILLED", "CANCELED", "REJECTED", "EXPIRED"}
# Far above the market, so it is filled at once; GTC, so it may wait until a worker sends it.
PATIENT = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "price": 1000, "timeInForce": "GTC", "qty": 1000}
MARKET = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000}

Snapshot = Mapping[str, Any]


async def place(
    session: aiohttp.ClientSession, gateway: Process, key: str | None = None, body: Snapshot = PATIENT, **changes: Any
) -> str:
    """Place an order that must be accepted; returns its id."""
    headers = gateway.headers(key=key)
    async with session.post(f"{gateway.url}/orders", json={**body, **changes}, headers=headers) as response:
        assert response.status == 202, await response.text()
        return str((await response.json())["orderId"])


async def cancel(session: aiohttp.ClientSession, gateway: Process, order_id: str) -> None:
    """Request a cancel that must be accepted."""
    async with session.post(f"{gateway.url}/orders/{order_id}/cancel", headers=gateway.headers()) as response:
        assert response.status == 202, await response.text()


async def get(session: aiohttp.ClientSession, gateway: Process, path: str) -> Any:
    """The JSON body of a response that must be 200."""
    async with session.get(gateway.url + path, headers=gateway.headers()) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def all_orders(session: aiohttp.ClientSession, gateway: Process) -> list[Snapshot]:
    """The account's orders, read page by page."""
    orders: list[Snapshot] = []
    path = "/orders?limit=500"
    while True:
        page = await get(session, gateway, path)
        orders += page["orders"]
        if page["nextCursor"] is None:
            return orders
        path = f"/orders?limit=500&cursor={page['nextCursor']}"


async def until_all(
    session: aiohttp.ClientSession, gateway: Process, condition: Callable[[Snapshot], bool]
) -> list[Snapshot]:
    """Wait until the condition is true of every order of the account; returns the orders."""
    orders: list[Snapshot] = []

    async def are_all() -> bool:
        orders[:] = await all_orders(session, gateway)
        return all(map(condition, orders))

    def others() -> str:
        waiting = [order for order in orders if not condition(order)]
        return f"{len(waiting)} of {len(orders)} orders, such as {waiting[0]}\n{gateway.log}"

    # Reading all orders is work for the gateway.
    await until(are_all, others, pause_seconds=0.1)
    return orders


async def until_all_final(session: aiohttp.ClientSession, gateway: Process) -> list[Snapshot]:
    """Wait until every order of the account has a final status; returns the orders."""
    return await until_all(session, gateway, lambda order: order["status"] in FINAL)


async def until_statuses(session: aiohttp.ClientSession, gateway: Process, *statuses: str) -> list[Snapshot]:
    """Wait until the account's orders have exactly these statuses among them; returns the orders."""
    orders: list[Snapshot] = []

    async def are_reached() -> bool:
        orders[:] = await all_orders(session, gateway)
        return {order["status"] for order in orders} == set(statuses)

    await until(are_reached, lambda: f"{orders}\n{gateway.log}", pause_seconds=0.1)
    return orders
