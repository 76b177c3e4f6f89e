"""The harness of the promise: deaths under load, then a look from outside at every order and at the venue's own log."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import aiohttp

from tests.support.load import FINAL, Client, pages
from tests.support.process import Process, until
from tests.support.simulator import Simulator

ROUNDS = 3
REPEATS = 100

CLASSES = ("forever", "open_only", "none")

Snapshot = Mapping[str, Any]


async def in_every_class(scenario: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    """Run it for each class of venue, all at once: most of their time is waiting."""
    async with asyncio.TaskGroup() as group:
        for dedupe in CLASSES:
            group.create_task(scenario(dedupe))


async def killed_under_load(
    gateway: Process,
    *,
    victim: Process,
    simulator: Simulator,
    doubt_seconds: float = 0.0,
) -> list[Snapshot]:
    """Orders as they stand after some deaths, once nothing moves any more."""
    chance = random.Random(7)
    client = Client(gateway)
    for _ in range(ROUNDS):
        stop = asyncio.Event()
        load = asyncio.create_task(client.load(stop))
        taken = len(simulator.orders())
        # A process that has just started listens to the venue first: wait until it is in the middle of sending.
        await until(lambda taken=taken: len(simulator.orders()) > taken + 60)  # type: ignore[misc]
        await asyncio.sleep(chance.uniform(0.0, 0.3))  # the moment of death is the one thing left to chance
        victim.kill()
        stop.set()
        await load
        await victim.start()
    # What is in doubt is settled by repeating it; of the rest, a repeat is the same order, or the client says so.
    await client.insist([*client.unknown, *list(client.acknowledged)[:REPEATS]])
    dedupe = victim.settings["VENUE_DEDUPE_SIM"]
    orders = await settled(gateway, simulator, dedupe=dedupe, doubt_seconds=doubt_seconds)
    check_acknowledged(client, orders)
    return orders


async def settled(gateway: Process, simulator: Simulator, *, dedupe: str, doubt_seconds: float = 0.0) -> list[Snapshot]:
    """The orders once nothing moves any more, each look held against the venue's log.

    A doubt lasts only where nobody can be asked, and only until the venue's report of an execution has come. It is
    looked at for `doubt_seconds`, in which one who guesses would have acted.
    """
    found: list[Snapshot] = []

    async def nothing_moves() -> bool:
        found[:] = await pages(session, gateway)
        executions = check_executions(simulator, found)  # read after the orders: whatever they say has happened
        return all(order["status"] in FINAL or lasts(order, executions) for order in found)

    def lasts(order: Snapshot, executions: Counter[str]) -> bool:
        if dedupe != "none" or order["status"] != "UNKNOWN" or executions[order["orderId"]]:
            return False
        age = datetime.now(UTC) - datetime.fromisoformat(order["updatedAt"])
        return age.total_seconds() >= doubt_seconds

    async with aiohttp.ClientSession() as session:
        await until(nothing_moves, pause_seconds=0.1)
    return found


def check_acknowledged(client: Client, orders: Sequence[Snapshot]) -> None:
    """Every acknowledged order is there, and no other."""
    assert not client.unknown
    assert {order["orderId"] for order in orders} == set(client.acknowledged.values())
    assert sorted(order["clientOrderId"] for order in orders) == sorted(client.acknowledged)


def check_executions(simulator: Simulator, orders: Sequence[Snapshot]) -> Counter[str]:
    """What each order says of itself is what the venue's log says; returns how often it took each."""
    executions = simulator.check_nothing_twice()
    for order in orders:
        taken = executions[order["orderId"]]
        match order["status"]:
            case "FILLED":
                assert (taken, order["filledQty"]) == (1, 1000), f"the venue took {order} {taken} times"
                assert order["reason"] is None, f"{order} was said to have failed, and was executed after all"
            case "EXPIRED":
                assert (taken, order["filledQty"]) == (0, 0), f"{order} was executed after all"
                assert order["timeInForce"] == "IOC", f"{order} could have waited, and was given up"
            case "REJECTED" | "CANCELED":
                raise AssertionError(f"nobody rejected or cancelled {order}, which the venue took {taken} times")
            case "WORKING" | "PARTIALLY_FILLED":
                assert taken, f"{order} is said to be at the venue, which does not have it"
            case _:
                assert order["filledQty"] == 0, f"{order} has a fill that it does not speak of"
    return executions
