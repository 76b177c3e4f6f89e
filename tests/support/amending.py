"""Amends over HTTP, and the comparison of every amended order with the broker's own log."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import aiohttp

from tests.support.orders import FINAL, Snapshot, all_orders
from tests.support.polling import until
from tests.support.process import Process
from tests.support.venue_process import VenueProcess

# Far below the market: it rests.
RESTING = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "price": 100, "timeInForce": "GTC", "qty": 1000}


def amending_settings(broker: VenueProcess, mode: str, **changes: str) -> dict[str, str]:
    """The settings of a process whose broker amends orders."""
    return broker.client_settings(VENUE_AMEND_SIM=mode, VENUE_WINDOW_SEC_SIM="1", VENUE_SWEEP_SEC_SIM="1", **changes)


async def amend(
    session: aiohttp.ClientSession, gateway: Process, order_id: str, key: str, **body: Any
) -> tuple[int, dict[str, Any], bool]:
    """Request an amend; returns status, body, and whether it repeats an earlier request."""
    url, headers = f"{gateway.url}/orders/{order_id}", gateway.headers(key=key)
    async with session.patch(url, json=body, headers=headers) as response:
        return response.status, await response.json(), response.headers.get("Idempotent-Replayed") == "true"


async def insist(
    session: aiohttp.ClientSession, gateway: Process, order_id: str, key: str, **body: Any
) -> dict[str, Any]:
    """Repeat an amend under its key until it is acknowledged, also while the gateway is away."""
    answers: list[dict[str, Any]] = []

    async def is_acknowledged() -> bool:
        try:
            status, answer, _ = await amend(session, gateway, order_id, key, **body)
        except aiohttp.ClientError:
            return False
        assert status in (202, 503), answer
        answers.append(answer)
        return status == 202

    await until(is_acknowledged, lambda: gateway.log, pause_seconds=0.05)
    return answers[-1]


async def until_settled(
    session: aiohttp.ClientSession, gateway: Process, requests: Iterable[tuple[str, str, dict[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """Repeat each request (order, key, body) until its amend is settled; returns the answers by key."""

    async def settled(order_id: str, key: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        answers: list[dict[str, Any]] = []

        async def is_settled() -> bool:
            answers.append(await insist(session, gateway, order_id, key, **body))
            return bool(answers[-1]["status"] != "PENDING")

        await until(is_settled, lambda: f"{answers[-1]}\n{gateway.log}", pause_seconds=0.2)
        return key, answers[-1]

    return dict(await asyncio.gather(*(settled(*request) for request in requests)))


def check_amends(broker: VenueProcess, answers: Iterable[dict[str, Any]], *, repeats: bool = False) -> None:
    """Assert that the broker carried out exactly the amends that are AMENDED, each once, and got no copy of one."""
    done = Counter(line["amend_id"] for line in broker.events("amend"))
    assert set(done.values()) <= {1}, "the broker carried an amend out twice"
    assert repeats or not broker.events("repeat"), "the broker got an amend twice"
    for answer in answers:
        # One on the spot was never sent.
        assert answer["status"] != "REFUSED" or not done[answer["amendId"]], f"{answer}, but it was carried out"


def broker_orders(broker: VenueProcess) -> dict[str, dict[str, Any]]:
    """By Switchyard's order id: quantity, price, filled quantity and status of the order in its place at the broker."""
    legs: dict[str, dict[str, Any]] = {}
    roots: dict[str, str] = {}
    for line in broker.events():
        match line["event"]:
            case "order":
                roots[line["venue_order_id"]] = line["trace_id"]
                legs[line["venue_order_id"]] = _shown(line["order"])
            case "amend":
                if "replaces" in line:
                    roots[line["venue_order_id"]] = roots.pop(line["replaces"])
                legs[line["venue_order_id"]] = _shown(line["order"])
            case "fill" | "cancel" | "expire":
                legs[line["venue_order_id"]] |= {"filled": line["filled_qty"], "status": line["status"]}
    return {order_id: legs[venue_id] for venue_id, order_id in roots.items()}


def _shown(order: dict[str, Any]) -> dict[str, Any]:
    return {
        "qty": order["qty"],
        "price": order.get("limit_price"),
        "filled": order.get("filled_qty", 0),
        "status": order.get("status", "WORKING"),
    }


async def until_equal(session: aiohttp.ClientSession, gateway: Process, broker: VenueProcess) -> list[Snapshot]:
    """Wait until every order is the same here and at the broker; returns the orders."""
    orders: list[Snapshot] = []
    differences: list[str] = []

    async def are_equal() -> bool:
        orders[:] = await all_orders(session, gateway)
        there = broker_orders(broker)
        differences[:] = [
            f"{order} at the broker {there.get(order['orderId'])}" for order in orders if _differs(order, there)
        ]
        return not differences

    await until(are_equal, lambda: f"{differences[:2]}\n{gateway.log}", pause_seconds=0.2)
    return orders


def _differs(order: Snapshot, there: dict[str, dict[str, Any]]) -> bool:
    leg = there.get(order["orderId"])
    if leg is None:
        return order["status"] not in FINAL
    amounts = (order["qty"], order["price"], order["filledQty"]) != (leg["qty"], leg["price"], leg["filled"])
    same_status = order["status"] == leg["status"] or not {order["status"], leg["status"]} & FINAL
    return amounts or "pendingQty" in order or not same_status
