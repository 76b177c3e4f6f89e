"""Stop and DAY orders while the process with the paper exchange is killed: triggered, filled and expired once."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.cluster import Cluster
from tests.support.evidence import check_audit
from tests.support.orders import cancel, get, place, until_all, until_statuses
from tests.support.polling import until
from tests.support.process import Process

# The market has passed this stop price: the order is triggered at once, and filled in parts after the delay.
PASSED = {"symbol": "USDJPY", "side": "BUY", "type": "STOP", "qty": 1000, "stopPrice": 1}
WAITING = {"symbol": "USDJPY", "side": "SELL", "type": "STOP_LIMIT", "qty": 1000, "stopPrice": 1, "price": 0.5}
SLOW = {"EXCHANGE_SIM_DELAY_MS_SIM": "700", "EXCHANGE_SIM_PARTIAL_STEPS_SIM": "3"}
COUNT = 20


async def reports_of(session: aiohttp.ClientSession, process: Process, order_id: str) -> list[dict[str, Any]]:
    events = (await get(session, process, f"/orders/{order_id}/events"))["events"]
    return [event["data"] for event in events if event["type"] == "ExecutionReport"]


async def test_a_kill_between_the_trigger_and_the_fills_executes_every_stop_order_once(
    cluster: Cluster, engine_settings: dict[str, str], session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    process = await cluster.process(**engine_settings, **SLOW).start()
    waiting = await place(session, process, body=WAITING, timeInForce="DAY")
    first = await place(session, process, "first", body=PASSED)

    async def is_partly_filled() -> bool:
        return len(await reports_of(session, process, first)) >= 2

    await until(is_partly_filled, lambda: process.log)
    others = await asyncio.gather(*(place(session, process, f"key-{n}", body=PASSED) for n in range(COUNT)))
    process.kill()
    await process.start()
    assert await place(session, process, "key-0", body=PASSED) == others[0]
    await until_all(session, process, lambda order: order["status"] == "FILLED" or order["orderId"] == waiting)
    for order_id in (first, *others):
        reports = await reports_of(session, process, order_id)
        kinds = Counter(report.get("execType", "fill") for report in reports)
        assert kinds == {"TRIGGERED": 1, "fill": 3}
        assert sum(report.get("lastQty", 0) for report in reports) == 1000
    shown = await get(session, process, f"/orders/{waiting}")
    assert (shown["status"], shown["stopPrice"], shown["timeInForce"]) == ("WORKING", 1, "DAY")
    assert shown["expiresAt"] > shown["acceptedAt"]
    await cancel(session, process, waiting)
    await until_statuses(session, process, "FILLED", "CANCELED")
    if not engine_settings:  # the rebuild is made from the audit file, whatever the engine
        await check_audit(process, tmp_path)
