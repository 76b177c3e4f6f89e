"""SIGKILL at each boundary of an amend, at venues that amend in place and at those that replace the order."""

import asyncio
from collections import Counter

import aiohttp
import pytest

from tests.support.amending import RESTING, amending_settings, check_amends, insist, until_equal, until_settled
from tests.support.cluster import Cluster
from tests.support.dying_amend import BOUNDARIES, dying_command
from tests.support.evidence import check_audit
from tests.support.orders import place, until_all
from tests.support.polling import until
from tests.support.process import COMMAND

ORDERS = 12
# Fewer than the amends after which a process dies.
SETTLED_BEFORE = 3


@pytest.mark.parametrize("boundary", list(BOUNDARIES))
async def test_a_process_that_dies_at_a_boundary_of_an_amend_amends_once_and_loses_nothing(
    boundary: str, cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    async with asyncio.TaskGroup() as group:
        for mode, dedupe in (("in_place", "open_only"), ("cancel_replace", "forever")):
            group.create_task(dies(boundary, mode, dedupe, cluster.within(mode), session))


async def dies(boundary: str, mode: str, dedupe: str, cluster: Cluster, session: aiohttp.ClientSession) -> None:
    broker = await cluster.broker("--amend", mode, dedupe=dedupe).start()
    process = cluster.process(**amending_settings(broker, mode))
    process.command = dying_command(boundary)
    await process.start()
    orders = [await place(session, process, body=RESTING) for _ in range(ORDERS)]
    await until_all(session, process, lambda order: order["status"] == "WORKING")
    requests = [
        (order_id, f"amend-{number}", {"qty": 500 + number, "price": 90 + number})
        for number, order_id in enumerate(orders)
    ]
    # Some are settled before it dies, one after the other; the rest come at the same time.
    for request in requests[:SETTLED_BEFORE]:
        await until_settled(session, process, [request])
    amending = asyncio.gather(*(insist(session, process, order_id, key, **body) for order_id, key, body in requests))

    await until(lambda: not process.is_running, lambda: process.log)
    assert process.wait() == -9, process.log
    process.command = [str(COMMAND)]
    await process.start()
    first = await amending
    answers = await until_settled(session, process, requests)

    assert {key: answer["amendId"] for key, answer in answers.items()} == {
        key: answer["amendId"] for (_, key, _), answer in zip(requests, first, strict=True)
    }
    statuses = Counter(answer["status"] for answer in answers.values())
    # An amend that never left is proven absent, and the account is told so; nothing is sent again.
    assert statuses["AMENDED"] >= SETTLED_BEFORE, answers
    assert {answer.get("reason") for answer in answers.values()} <= {None, "ABSENT_AT_VENUE"}
    check_amends(broker, answers.values())
    await until_equal(session, process, broker)
    await check_audit(process, cluster.folder)
