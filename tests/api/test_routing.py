"""Routes over several venues from outside: the choice in the journal, a venue that is gone, `GET /venues`, the rate."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import RunningGateway, running_gateway
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.process import SECRET, run_command

FEW_PER_SECOND = "20"


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """Two paper exchanges with one market and different fees, and a broker that is gone."""
    settings = {
        "SOR_VENUES": "dear,cheap,gone",
        "SOR_DEFAULT_VENUE": "dear",
        "SOR_SYMBOL_ROUTES": "USDJPY=best:gone|dear|cheap,EURUSD=gone|cheap,GBPUSD=cheap|gone",
        "VENUE_FEE_PERCENT_DEAR": "0.5",
        "VENUE_URL_GONE": f"http://127.0.0.1:{free_port()}",
        "VENUE_BREAKER_FAULTS_GONE": "1",
        "VENUE_RATE_PER_SEC_CHEAP": FEW_PER_SECOND,
        "VENUE_BURST_CHEAP": "1",
    }
    async with running_gateway(tmp_path, **settings) as running:

        async def is_held() -> bool:
            states = {each["venue"]: each["breaker"] for each in (await running.get("/venues")).json["venues"]}
            return states == {"dear": "closed", "cheap": "closed", "gone": "open"}

        await until(is_held)
        yield running


async def accepted(gateway: RunningGateway, **order: Any) -> tuple[dict[str, object], dict[str, object]]:
    """The order's snapshot after its fill, and the data of its acceptance."""
    order_id = (await gateway.place(**order)).json["orderId"]
    snapshot = await gateway.until_status(order_id, "FILLED")
    events = (await gateway.get(f"/orders/{order_id}/events")).json["events"]
    return snapshot, events[0]["data"]


async def test_the_venue_of_a_route_by_quality_and_its_reasons_are_in_the_journal(gateway: RunningGateway) -> None:
    for side in ("BUY", "SELL"):
        snapshot, data = await accepted(gateway, side=side)
        assert snapshot["venue"] == "cheap"
        route = data["route"]
        assert isinstance(route, dict)
        assert route["by"] == "quality"
        cheap, dear, gone = route["candidates"]
        assert (cheap["venue"], cheap["reason"]) == ("cheap", "better price with its fee than dear")
        assert (dear["venue"], dear["feePercent"]) == ("dear", 0.5)
        assert (dear["effectivePrice"] > cheap["effectivePrice"]) == (side == "BUY")
        assert (gone["venue"], gone["healthy"]) == ("gone", False)
        assert "faults in a row" in gone["reason"]


async def test_an_order_by_preference_goes_to_the_first_healthy_venue(gateway: RunningGateway) -> None:
    snapshot, data = await accepted(gateway, symbol="EURUSD")
    assert snapshot["venue"] == "cheap"
    assert isinstance(data["route"], dict)
    assert [each["venue"] for each in data["route"]["candidates"]] == ["cheap", "gone"]
    for symbol, venue in (("GBPUSD", "cheap"), ("BTC", "dear")):
        plain, data = await accepted(gateway, symbol=symbol, qty=1000)
        assert plain["venue"] == venue
        assert "route" not in data, "nothing to explain"


async def test_a_rate_is_kept(gateway: RunningGateway) -> None:
    orders = 15
    began_at = time.monotonic()
    ids = [
        (await gateway.place(symbol="GBPUSD", type="LIMIT", price=1, timeInForce="GTC")).json["orderId"]
        for _ in range(orders)
    ]
    await asyncio.gather(*(gateway.until_status(order_id, "WORKING") for order_id in ids))
    took = time.monotonic() - began_at
    assert took >= (orders - 1) / int(FEW_PER_SECOND), "one at once, the others one by one"


async def test_the_command_shows_why_a_venue_gets_no_orders(gateway: RunningGateway) -> None:
    def are_asked() -> bool:
        reasons = {str(state.venue): state.reason for state in gateway.engine.venue_states()}
        return reasons["cheap"] is None and "not synchronised" in (reasons["gone"] or "")

    await until(are_asked)  # a process that has just started is still reading what the venues have
    shown = await asyncio.to_thread(run_command, "venues", "--url", gateway.url, JWT_HS256_SECRET=SECRET)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[0].split()[:4] == ["Venue", "Kind", "State", "Breaker"]
    [cheap] = [line.split() for line in shown.stdout.splitlines() if line.startswith("cheap")]
    assert cheap[:6] == ["cheap", "paper", "open", "closed", "0", "20"]
    assert "gone: not synchronised: " in shown.stdout


@pytest.mark.parametrize("scope", [None, "orders", "admin:health", "admin:kill"])
async def test_only_an_operator_sees_the_errors_of_a_venue(gateway: RunningGateway, scope: str | None) -> None:
    token = gateway.token(scopes=() if scope is None else (scope,))

    async def reasons() -> dict[str, tuple[str, str | None]]:
        headers = {"Authorization": f"Bearer {token}"}
        answer = await gateway.request("GET", "/venues", account=None, headers=headers)
        return {each["venue"]: (each["state"], each["reason"]) for each in answer.json["venues"]}

    async def are_asked() -> bool:
        return (await reasons())["cheap"] == ("open", None)

    await until(are_asked)
    state, reason = (await reasons())["gone"]
    assert state == "closed", "it was never read"
    if scope in ("admin:health", "admin:kill"):
        assert reason is not None
        assert reason.startswith("not synchronised: ")
    else:
        assert reason == "NOT_SYNCHRONISED"
