"""The harness of the crash tests: kills processes under load, then compares every order with the venue's own log."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any

import aiohttp

from tests.support.load import LoadClient
from tests.support.orders import FINAL, Snapshot, all_orders
from tests.support.polling import until
from tests.support.process import Process
from tests.support.venue_process import VenueProcess

ROUNDS = 3
REPEATS = 100

# The classes of venues A, B and C, by their deduplication.
CLASSES = ("forever", "open_only", "none")
# For tests with a planted defect. A report or a sweep that comes before the defective worker acts would settle the
# order. One that shows a second execution would close the venue, and no order with a send deadline would be accepted.
UNREPORTED = {"drop_reports": 1.0}
UNSWEPT = {"VENUE_SWEEP_SEC_SIM": "0"}


async def in_every_class(scenario: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    """Run the scenario for each class of venue, concurrently because most of the time is spent waiting."""
    async with asyncio.TaskGroup() as group:
        for dedupe in CLASSES:
            group.create_task(scenario(dedupe))


async def killed_under_load(
    gateway: Process, *, victim: Process, broker: VenueProcess, doubt_seconds: float = 0.0
) -> list[Snapshot]:
    """Kill a process several times under load; returns the orders once none of them changes any more."""
    chance = random.Random(7)
    client = LoadClient(gateway)
    for _ in range(ROUNDS):
        stop = asyncio.Event()
        load = asyncio.create_task(client.load(stop))
        accepted = len(broker.orders())
        # A process that has just started reads the venue's reports first: wait until it is sending.
        await until(lambda accepted=accepted: len(broker.orders()) > accepted + 60)  # type: ignore[misc]
        await asyncio.sleep(chance.uniform(0.0, 0.3))  # a different moment of each round
        victim.kill()
        stop.set()
        await load
        await victim.start()
    # Repeats settle the orders without an acknowledgement, and must return the same order for the others.
    await client.insist([*client.unknown, *list(client.acknowledged)[:REPEATS]])
    orders = await settled(gateway, broker, doubt_seconds=doubt_seconds)
    check_acknowledged(client, orders)
    return orders


async def settled(gateway: Process, broker: VenueProcess, *, doubt_seconds: float = 0.0) -> list[Snapshot]:
    """Wait until no order changes any more, and compare the orders with the venue's log at every poll.

    An order stays in doubt only at a venue of class C that has not executed it. It must have been in doubt for
    `doubt_seconds`, in which a worker that guesses would have sent it again.
    """
    orders: list[Snapshot] = []

    async def are_settled() -> bool:
        orders[:] = await all_orders(session, gateway)
        executions = check_executions(broker, orders)  # read after the orders, so that it has all they tell of
        return all(order["status"] in FINAL or stays_in_doubt(order, executions) for order in orders)

    def stays_in_doubt(order: Snapshot, executions: Counter[str]) -> bool:
        if broker.dedupe != "none" or order["status"] != "UNKNOWN" or executions[order["orderId"]]:
            return False
        age = datetime.now(UTC) - datetime.fromisoformat(order["updatedAt"])
        return age.total_seconds() >= doubt_seconds

    async with aiohttp.ClientSession() as session:
        # Hundreds of orders: each poll is work for the gateway.
        await until(are_settled, lambda: str(Counter(order["status"] for order in orders)), pause_seconds=0.3)
    return orders


def check_acknowledged(client: LoadClient, orders: Sequence[Snapshot]) -> None:
    """Assert that the orders are exactly those that were acknowledged."""
    assert not client.unknown
    assert {order["orderId"] for order in orders} == set(client.acknowledged.values())
    assert sorted(order["clientOrderId"] for order in orders) == sorted(client.acknowledged)


def check_executions(broker: VenueProcess, orders: Sequence[Snapshot]) -> Counter[str]:
    """Assert that every order agrees with the venue's log; returns how often the venue accepted each."""
    executions = broker.check_nothing_twice()
    for order in orders:
        times = executions[order["orderId"]]
        match order["status"]:
            case "FILLED":
                assert (times, order["filledQty"]) == (1, 1000), f"the venue accepted {order} {times} times"
                assert order["reason"] is None, f"{order} was executed and has a reason for a failure"
            case "EXPIRED":
                assert (times, order["filledQty"]) == (0, 0), f"{order} expired and was executed"
                assert order["timeInForce"] == "IOC", f"{order} may wait and expired"
            case "REJECTED" | "CANCELED":
                raise AssertionError(f"no one rejected or cancelled {order}, which the venue accepted {times} times")
            case "WORKING" | "PARTIALLY_FILLED":
                assert times, f"{order} counts as sent, and the venue does not have it"
            case _:
                assert order["filledQty"] == 0, f"{order} has a fill that its status contradicts"
    return executions
