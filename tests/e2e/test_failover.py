"""One of two venues goes away under load: what was never sent goes to the other, what is in doubt stays.

The logs of both simulated venues, which are fsynced before they answer, are the judge.
"""

import asyncio
import json
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.load import LoadClient, check_ends
from tests.support.orders import Snapshot, get, until_all_final
from tests.support.planted import planted_command
from tests.support.polling import until
from tests.support.process import Process
from tests.support.venue_process import VenueProcess

# Enough on each side to be in the middle of sending.
ORDERS = 40
# Longer than a sender waits for an answer: what it sent before is in doubt, and in the venue's input.
HANGS_SECONDS = 6.0


def two_venues(cluster: Cluster, route: str) -> tuple[VenueProcess, VenueProcess, dict[str, str]]:
    """Two brokers that would execute every copy of an order, and the settings of a process that uses both."""
    one, two = (cluster.broker(dedupe="none", name=name) for name in ("simA", "simB"))
    settings = {"SOR_VENUES": "simA,simB", "SOR_DEFAULT_VENUE": route, "SWITCHYARD_LOG_LEVEL": "warning"}
    for name, venue in (("SIMA", one), ("SIMB", two)):
        settings |= {
            f"VENUE_URL_{name}": venue.url,
            f"VENUE_DEDUPE_{name}": "while_open",
            f"VENUE_WINDOW_SEC_{name}": "2",
            f"VENUE_BREAKER_FAULTS_{name}": "3",
        }
    return one, two, settings


def check_judges(one: VenueProcess, two: VenueProcess, orders: list[Snapshot], audit: Path) -> dict[str, int]:
    """Assert that no order was executed twice or at another venue than its own, and that none in doubt moved.

    Returns how many orders moved, and how many came into doubt.
    """
    executed = {"simA": one.check_nothing_twice(), "simB": two.check_nothing_twice()}
    twice = set(executed["simA"]) & set(executed["simB"])
    assert not twice, f"{len(twice)} orders were executed at both venues"
    for order in orders:
        places = [venue for venue, found in executed.items() if found[order["orderId"]]]
        assert places == ([order["venue"]] if order["status"] == "FILLED" else []), order
    histories: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in audit.read_bytes().splitlines():
        event = json.loads(line)
        histories[event["orderId"]].append(event)
    counts = {"moved": 0, "in doubt": 0}
    for order_id, events in histories.items():
        types = [event["type"] for event in events]
        counts["moved"] += "OrderRerouted" in types
        counts["in doubt"] += "OrderUncertain" in types
        if "OrderUncertain" in types and "OrderRerouted" in types:
            assert types.index("OrderUncertain") > len(types) - 1 - types[::-1].index("OrderRerouted"), (
                f"{order_id} was in doubt and moved: {types}"
            )
    return counts


async def go_away(
    cluster: Cluster,
    session: aiohttp.ClientSession,
    *,
    hangs: bool,
    database_url: str | None,
    defect: str | None = None,
    **changes: str,
) -> dict[str, int]:
    """Take the preferred venue away under load and bring it back; returns the counts of `check_judges`.

    With PostgreSQL a gateway and a worker run as processes of their own. The gateway does not know that the venue is
    gone: every order is accepted for it, and the worker moves it.
    """
    one, two, settings = two_venues(cluster, "simA|simB")
    settings |= changes
    gateway = sender = cluster.process(**settings)
    if database_url is not None:
        settings["SWITCHYARD_DATABASE_URL"] = database_url
        gateway, sender = cluster.process("gateway", "gateway", **settings), cluster.process("worker", "w", **settings)
    if defect is not None:
        sender.command = planted_command(defect)
    await asyncio.gather(*(process.start() for process in {one, two, gateway, sender}))
    client, stop = LoadClient(gateway), asyncio.Event()
    load = asyncio.create_task(client.load(stop))
    try:
        await until(lambda: len(one.orders()) >= ORDERS, lambda: sender.log)
        if hangs:
            one.send(signal.SIGSTOP)
        else:
            one.kill()
        before, gone_at = len(two.orders()), time.monotonic()
        await until(lambda: len(two.orders()) >= before + ORDERS, lambda: sender.log)
        await until(lambda: is_held(session, gateway), pause_seconds=0.1)  # a gateway knows it from the worker
        if hangs:
            await until(lambda: time.monotonic() - gone_at >= HANGS_SECONDS, pause_seconds=0.1)
        if hangs:
            one.send(signal.SIGCONT)
        else:
            await one.start()
        again = len(one.orders())
        await until(lambda: len(one.orders()) >= again + ORDERS, lambda: sender.log)
    finally:
        stop.set()
        if hangs:
            one.send(signal.SIGCONT)
        await asyncio.gather(load, return_exceptions=True)
    orders = await until_all_final(session, gateway)
    assert {order["orderId"] for order in orders} >= set(client.acknowledged.values())
    audit = Path(gateway.settings["SWITCHYARD_DATA_DIR"]) / "gateway" / "audit.log"
    head = (await get(session, gateway, f"/orders/{orders[0]['orderId']}/events"))["events"][-1]["seq"]
    await until(lambda: f'"seq":{head},' in audit.read_text())
    counts = check_judges(one, two, orders, audit)
    check_ends(orders)
    return counts


async def is_held(session: aiohttp.ClientSession, gateway: Process) -> bool:
    """Whether the gateway shows that no orders are sent to the first venue, and why."""
    first, second = (await get(session, gateway, "/venues"))["venues"]
    return (first["state"], second["state"]) == ("held", "open") and bool(first["reason"])


async def test_a_venue_is_killed_under_load_and_comes_back(cluster: Cluster, session: aiohttp.ClientSession) -> None:
    # Two sends at once, and three faults that open the breaker: at least one order meets a refused connection. With
    # more sends, all faults could be those of orders that were under way, and none would be left to move.
    narrow = {"OUTBOX_BATCH_SIZE": "1", "OUTBOX_PARALLELISM": "2"}
    counts = await go_away(cluster, session, hangs=False, database_url=None, **narrow)
    assert counts["moved"] > 0


async def test_a_venue_hangs_under_load_and_comes_back(
    cluster: Cluster, session: aiohttp.ClientSession, database_url: str
) -> None:
    counts = await go_away(cluster, session, hangs=True, database_url=database_url)
    assert counts["moved"] > 0
    assert counts["in doubt"] > 0, "the requests that it had in its input are in doubt"


async def test_an_order_in_doubt_that_moves_is_caught(cluster: Cluster, session: aiohttp.ClientSession) -> None:
    with pytest.raises(AssertionError, match="executed at both venues"):
        await go_away(cluster, session, hangs=True, database_url=None, defect="doubt_is_unsent")
