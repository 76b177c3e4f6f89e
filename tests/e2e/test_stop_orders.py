"""Stop orders at a broker in its own process: the market triggers them, also after the broker was killed."""

import aiohttp

from tests.support.cluster import Cluster
from tests.support.orders import get, place
from tests.support.polling import until

TICK = 0.001
KINDS = {
    "VENUE_ORDER_TYPES_SIM": "LIMIT,MARKET,STOP,STOP_LIMIT",
    "VENUE_TIMES_IN_FORCE_SIM": "IOC,FOK,GTC,DAY",
    "VENUE_QUOTES_POLL_SEC_SIM": "0.2",
}


async def test_the_broker_triggers_a_stop_order_when_the_market_reaches_it_and_we_send_it_once(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker = await cluster.broker().start()
    process = await cluster.process(**broker.client_settings(**KINDS)).start()

    async def has_quote() -> bool:
        async with session.get(f"{process.url}/quotes/USDJPY", headers=process.headers()) as response:
            return response.status == 200

    await until(has_quote, lambda: process.log)
    quote = await get(session, process, "/quotes/USDJPY")
    # One on each side of the market, so that a move in either direction triggers one of them.
    above = await place(
        session, process, type="STOP", price=None, stopPrice=round(quote["ask"] + 5 * TICK, 3), timeInForce="DAY"
    )
    below = await place(
        session, process, side="SELL", type="STOP_LIMIT", price=1, stopPrice=round(quote["bid"] - 5 * TICK, 3)
    )
    await until(lambda: set(broker.executions()) == {above, below}, lambda: process.log)
    broker.kill()
    await broker.start()

    filled: list[str] = []

    async def is_one_filled() -> bool:
        for order_id in (above, below):
            if (await get(session, process, f"/orders/{order_id}"))["status"] == "FILLED":
                filled.append(order_id)
        return bool(filled)

    await until(is_one_filled, lambda: process.log, pause_seconds=0.1)
    order_id = filled[0]
    events = (await get(session, process, f"/orders/{order_id}/events"))["events"]
    reports = [event["data"] for event in events if event["type"] == "ExecutionReport"]
    assert {(report["status"], report.get("execType")) for report in reports} == {
        ("WORKING", "TRIGGERED"),
        ("FILLED", None),
    }
    assert len(reports) == 2
    broker.check_nothing_twice()
    [line] = [line for line in broker.events("order") if line["trace_id"] == order_id]
    mine = [event["event"] for event in broker.events() if event["client_order_id"] == line["client_order_id"]]
    assert [event for event in mine if event != "report"] == ["order", "trigger", "fill"]
