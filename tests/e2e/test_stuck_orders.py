"""Faults of a venue that could leave an order stuck: the order moves on, or an operator is told.

The venue's faults are the simulator's own, and the process is a real one.
"""

import json

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.contract import problems
from tests.support.figures import scrape
from tests.support.orders import cancel, place, until_statuses
from tests.support.polling import until

RESTING = 1


async def test_a_cancel_that_the_venue_acknowledged_and_lost_is_sent_again(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    venue = await cluster.broker(dedupe="open_only").start()
    process = await cluster.process(**venue.client_settings(VENUE_SWEEP_SEC_SIM="0.5")).start()
    order_id = await place(session, process, "lost-cancel", price=RESTING)
    await until_statuses(session, process, "WORKING")
    await venue.set_faults(cancel_lost=1)
    await cancel(session, process, order_id)
    await until_statuses(session, process, "CANCEL_REQUESTED")
    await until(lambda: "cancel_repeated" in process.log)
    await venue.clear_faults()
    await until_statuses(session, process, "CANCELED")


async def test_a_total_beyond_our_fills_raises_an_alarm_where_the_venue_cannot_be_asked(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    venue = await cluster.broker(dedupe="none", faults={"drop_reports": 0.5, "partial_fills": 4}).start()
    process = await cluster.process(**venue.client_settings()).start()
    for number in range(10):
        await place(session, process, f"part-{number}")
    await until(lambda: "quantity_gap" in process.log)
    assert (await scrape(session, process.url))["venue_quantity_gaps_total"] > 0


@pytest.mark.parametrize("path", ["/stream", "/orders/{order_id}/stream"])
async def test_a_rejection_in_the_answer_to_an_order_is_an_execution_report_on_both_streams(
    path: str, cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    venue = await cluster.broker(faults={"reject": 1}).start()
    process = await cluster.process(**venue.client_settings()).start()
    order_id = await place(session, process, "rejected")
    [order] = await until_statuses(session, process, "REJECTED")
    headers = {**process.headers(), "Last-Event-ID": "0"}
    async with session.get(process.url + path.format(order_id=order_id), headers=headers) as response:
        messages = []
        name = ""
        async for raw in response.content:
            kind, _, value = raw.decode().rstrip("\n").partition(": ")
            if kind == "event":
                name = value
            elif kind == "data":
                messages.append((name, json.loads(value)))
                if name == "order_update" and messages[-1][1]["status"] == "REJECTED":
                    break
    [report] = [data for name, data in messages if name == "execution_report"]
    assert messages[-2] == ("execution_report", report), "the update that it caused follows"
    assert (report["orderId"], report["status"], report["lastQty"]) == (order_id, "REJECTED", 0)
    assert report["reason"] == order["reason"]
    assert report["venueOrderId"] is None
    assert problems("execution_report_v1.schema.json", report) == []
