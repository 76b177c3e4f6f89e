"""One of two venues goes away under load: what was never sent goes to the other, what is in doubt stays.

The logs of both simulated venues, which are fsynced before they answer, are the judge.
"""

import asyncio
import json
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.figures import scrape
from tests.support.load import LoadClient, check_ends
from tests.support.orders import Snapshot, until_all_final
from tests.support.polling import until
from tests.support.process import Process
from tests.support.venue_process import VenueProcess

# Enough on each side to be in the middle of sending.
ORDERS = 40


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


@pytest.mark.parametrize("fault", ["killed", "hangs"])
async def test_a_venue_that_goes_away_under_load(
    cluster: Cluster, database_url: str, session: aiohttp.ClientSession, fault: str
) -> None:
    one, two, settings = two_venues(cluster, "simA|simB")
    await asyncio.gather(one.start(), two.start())
    if fault == "killed":
        gateway = await cluster.process(**settings).start()
        sender = gateway
    else:  # the gateway does not know that the venue hangs: every order is accepted for it, and the worker moves it
        settings["SWITCHYARD_DATABASE_URL"] = database_url
        gateway, sender = cluster.process("gateway", "gateway", **settings), cluster.process("worker", "w", **settings)
        await asyncio.gather(gateway.start(), sender.start())
    client, stop = LoadClient(gateway), asyncio.Event()
    load = asyncio.create_task(client.load(stop))
    try:
        await until(lambda: len(one.orders()) >= ORDERS, lambda: sender.log)
        if fault == "killed":
            one.kill()
        else:
            one.send(signal.SIGSTOP)
        before = len(two.orders())
        await until(lambda: len(two.orders()) >= before + ORDERS, lambda: sender.log)
        if fault == "killed":
            await one.start()
        else:
            one.send(signal.SIGCONT)
        again = len(one.orders())
        await until(lambda: len(one.orders()) >= again + ORDERS, lambda: sender.log)
    finally:
        stop.set()
        if fault == "hangs":
            one.send(signal.SIGCONT)
        await asyncio.gather(load, return_exceptions=True)

    orders = await until_all_final(session, gateway)

    check_ends(orders)
    assert {order["orderId"] for order in orders} >= set(client.acknowledged.values())
    await until(lambda: audited(gateway) >= len(orders))
    counts = check_judges(one, two, orders, Path(gateway.settings["SWITCHYARD_DATA_DIR"]) / "gateway" / "audit.log")
    assert counts["moved"] > 0
    if fault == "hangs":
        assert counts["in doubt"] > 0, "the requests that it had in its input are in doubt"
    else:
        figures = await scrape(session, gateway.url)
        assert figures["venue_breaker_state{simA}"] == 0


def audited(gateway: Process) -> int:
    """How many ends of orders the audit file has."""
    text = (Path(gateway.settings["SWITCHYARD_DATA_DIR"]) / "gateway" / "audit.log").read_text()
    return sum(text.count(f'"status":"{status}"') for status in ("FILLED", "EXPIRED"))
