"""Orders at the venue of the example plugin, around whose sends processes die, pause and lose their connections.

The broker is of class B: it recognises ids while they are open, looks all orders up, and rejects requests that are too
old. Its own log is the judge.
"""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.acorn import WINDOW, AcornWorld, acorn_settings, acorn_world, plugin_path
from tests.support.cluster import Cluster
from tests.support.dying import BOUNDARY_REACHED, pausing_command
from tests.support.hop_proxy import Place, hop_proxy
from tests.support.load import LoadClient, check_ends
from tests.support.orders import Snapshot, get, place, until_all_final, until_statuses
from tests.support.polling import until

ROUNDS = 2
# Of each round: with these, the process is in the middle of sending.
SENT_MIN = 30
KEYS = [f"key-{number}" for number in range(1, 11, 2)]
# `delay`: the request is under way when its process dies, for less than the window.
FAULTS = {"lose_request": True, "lose_answer": True, "fail_after": 503, "delay": 1}
STUCK = {"OUTBOX_STUCK_THRESHOLD_MIN": "0.01"}
# The window of the adapter, and more than clocks can differ by here.
TOO_OLD_SECONDS = WINDOW.total_seconds() + 2.0
SEND = b"POST /v2/orders "


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AcornWorld]:
    world = acorn_world(tmp_path / "broker")
    await world.start()
    yield world
    world.close()


@pytest.fixture
def settings(tmp_path: Path, world: AcornWorld) -> dict[str, str]:
    """On SQLite: what an adapter makes of an answer does not depend on the database."""
    return acorn_settings(world.url, PYTHONPATH=plugin_path(tmp_path / "plugin"))


def executed(world: AcornWorld) -> Counter[str]:
    """How often the broker executed a whole order, by its client order id."""
    text = world.log.read_bytes()
    lines = [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
    return Counter(line["order"]["ref"] for line in lines if line["what"] == "traded")


def check(world: AcornWorld, orders: Sequence[Snapshot]) -> None:
    """Assert that the broker executed each filled order once, and nothing else."""
    counts = executed(world)
    assert set(counts.values()) <= {1}, "the broker executed a client order id twice"
    filled = sum(order["status"] == "FILLED" for order in orders)
    assert len(counts) == filled, f"{len(counts)} orders were executed, and {filled} are filled"


async def test_a_process_killed_under_load_executes_nothing_twice_and_loses_nothing(
    cluster: Cluster,
    session: aiohttp.ClientSession,
    world: AcornWorld,
    settings: dict[str, str],
    engine_settings: dict[str, str],
) -> None:
    process = await cluster.process(**settings, **engine_settings).start()
    client = LoadClient(process)
    for _ in range(ROUNDS):
        stop = asyncio.Event()
        before = len(executed(world))
        load = asyncio.create_task(client.load(stop))
        await until(lambda before=before: len(executed(world)) > before + SENT_MIN)  # type: ignore[misc]
        process.kill()
        stop.set()
        await load
        await process.start()
    await client.insist(client.unknown)
    orders = await until_all_final(session, process)
    assert {order["orderId"] for order in orders} == set(client.acknowledged.values())
    check_ends(orders)
    check(world, orders)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_process_killed_in_doubt_executes_its_order_once(
    fault: str, cluster: Cluster, session: aiohttp.ClientSession, world: AcornWorld, settings: dict[str, str]
) -> None:
    process = await cluster.process(**settings).start()
    await world.fault(fault, FAULTS[fault])
    await place(session, process, "key")
    if fault == "delay":
        await until_statuses(session, process, "SENDING")
    else:
        await until(lambda: "order_uncertain" in process.log)
    process.kill()
    await process.start()
    check(world, await until_statuses(session, process, "FILLED"))


@pytest.mark.parametrize("place_of_cut", ["request", "answer"])
async def test_a_connection_cut_in_a_send_executes_its_order_once(
    place_of_cut: Place, cluster: Cluster, session: aiohttp.ClientSession, world: AcornWorld, settings: dict[str, str]
) -> None:
    async with hop_proxy(world.port) as proxy:
        process = await cluster.process(**{**settings, "VENUE_URL_ACORN": f"acorn:{proxy.url}"}).start()
        proxy.cut_next(place_of_cut, SEND)
        await place(session, process, "key")
        await until(lambda: "order_uncertain" in process.log)
        check(world, await until_statuses(session, process, "FILLED"))
        assert await asyncio.to_thread(process.stop) == 0  # before the proxy, to which it connects all the time


async def held_for_too_long(
    cluster: Cluster, session: aiohttp.ClientSession, world: AcornWorld, settings: dict[str, str]
) -> None:
    """A proxy keeps a request until the order is sent again, and then delivers both; the judge is the broker's log."""
    async with hop_proxy(world.port) as proxy:
        process = await cluster.process(**{**settings, "VENUE_URL_ACORN": f"acorn:{proxy.url}"}).start()
        proxy.hold(SEND)
        await place(session, process, "key")
        # The second copy is held as well; by then the first one is older than the broker takes.
        await until(lambda: proxy.waiting == 2, lambda: process.log)
        proxy.release()
        orders = await until_statuses(session, process, "FILLED")
        await until(lambda: sum(one.startswith(SEND) for one in proxy.delivered) == 2)
        assert await asyncio.to_thread(process.stop) == 0
    check(world, orders)


async def test_a_request_that_a_proxy_holds_for_too_long_is_sent_again_and_executed_once(
    cluster: Cluster, session: aiohttp.ClientSession, world: AcornWorld, settings: dict[str, str]
) -> None:
    await held_for_too_long(cluster, session, world, settings)


async def test_the_harness_detects_a_broker_that_takes_requests_of_any_age(
    cluster: Cluster, session: aiohttp.ClientSession, tmp_path: Path
) -> None:
    world = acorn_world(tmp_path / "broker", "--ignores-expiry")
    await world.start()
    try:
        with pytest.raises(AssertionError, match="the broker executed a client order id twice"):
            settings = acorn_settings(world.url, PYTHONPATH=plugin_path(tmp_path / "plugin"))
            await held_for_too_long(cluster, session, world, settings)
    finally:
        world.close()


async def test_a_process_that_stood_still_before_it_sent_executes_its_orders_once(
    cluster: Cluster, session: aiohttp.ClientSession, world: AcornWorld, settings: dict[str, str]
) -> None:
    process = cluster.process(**settings, **STUCK)
    process.command = pausing_command("after_the_attempt_is_committed")
    await process.start()
    world.close()  # so that all orders wait and are claimed at once
    await until(lambda: "venue_breaker_opened" in process.log, lambda: process.log)
    await LoadClient(process).insist(KEYS)
    await world.start()
    await until(lambda: BOUNDARY_REACHED in process.log)
    await until_too_old()
    process.send(signal.SIGCONT)
    check(world, await until_statuses(session, process, "FILLED"))


async def until_too_old() -> None:
    """Wait until a request that was signed before this call comes too late."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    await until(lambda: loop.time() > since + TOO_OLD_SECONDS)


async def test_a_paused_worker_that_continues_after_another_one_has_sent_executes_nothing(
    cluster: Cluster, session: aiohttp.ClientSession, world: AcornWorld, database_url: str, tmp_path: Path
) -> None:
    """With request expiry, another worker sends in the place of a paused one that is still alive."""
    settings = acorn_settings(
        world.url, PYTHONPATH=plugin_path(tmp_path / "plugin"), SWITCHYARD_DATABASE_URL=database_url, **STUCK
    )
    gateway = await cluster.process("gateway", "gateway", **settings).start()
    paused, survivor = (cluster.process("worker", name, **settings) for name in ("paused", "survivor"))
    paused.command = pausing_command("after_the_attempt_is_committed")
    await LoadClient(gateway).insist(KEYS)
    paused.spawn()
    await until(lambda: BOUNDARY_REACHED in paused.log, lambda: paused.log)
    await survivor.start()
    await until(lambda: len(executed(world)) == len(KEYS), lambda: survivor.log)
    paused.send(signal.SIGCONT)
    assert await asyncio.to_thread(paused.stop) == 0  # it has sent everything that it was going to send
    check(world, await until_all_final(session, gateway))


SWITCH_SECONDS = 10
SWITCH = {"VENUE_CANCEL_ALL_AFTER_ACORN": str(SWITCH_SECONDS)}
RESTING: dict[str, Any] = {"price": 1}


def steps(world: AcornWorld, *kinds: str) -> list[dict[str, Any]]:
    """The broker's own record of these steps, in order."""
    lines = [json.loads(line) for line in world.log.read_bytes().splitlines()] if world.log.exists() else []
    return [line for line in lines if line["what"] in kinds]


async def test_the_broker_cancels_the_orders_of_a_process_that_was_killed_and_their_reports_settle_them(
    cluster: Cluster, session: aiohttp.ClientSession, world: AcornWorld, settings: dict[str, str]
) -> None:
    process = await cluster.process(**settings, **SWITCH).start()
    await place(session, process, "key", **RESTING)
    await until_statuses(session, process, "WORKING")
    [shown] = (await get(session, process, "/venues"))["venues"]
    assert (shown["cancelAllAfterSec"], shown["cancelAllAfter"]) == (SWITCH_SECONDS, "set")
    await until(lambda: len(steps(world, "guarded")) >= 4, lambda: process.log)
    process.kill()
    armed = [step["ms"] for step in steps(world, "guarded")]
    pauses = [later - before for before, later in pairwise(armed)]
    assert all(pause < SWITCH_SECONDS * 1_000 / 2 for pause in pauses), pauses
    await until(lambda: bool(steps(world, "ended")), lambda: process.log)
    assert steps(world, "ended")[0]["ms"] - armed[-1] >= SWITCH_SECONDS * 1_000
    await process.start()
    [order] = await until_statuses(session, process, "CANCELED")
    assert order["filledQty"] == 0
    assert executed(world) == {}


@pytest.mark.parametrize("disarms", [False, True], ids=["keeps it set", "disarms"])
async def test_an_orderly_stop_leaves_the_switch_as_the_settings_say(
    disarms: bool, cluster: Cluster, session: aiohttp.ClientSession, world: AcornWorld, settings: dict[str, str]
) -> None:
    stays = {"VENUE_DISARM_ON_STOP_ACORN": "true"} if disarms else {}
    process = await cluster.process(**settings, **SWITCH, **stays).start()
    await place(session, process, "key", **RESTING)
    await until_statuses(session, process, "WORKING")
    assert await asyncio.to_thread(process.stop) == 0
    assert steps(world, "guarded")[-1]["seconds"] == (0 if disarms else SWITCH_SECONDS)
    await process.start()  # within the time
    assert [order["status"] for order in await until_statuses(session, process, "WORKING")] == ["WORKING"]
    assert steps(world, "guarded")[-1]["seconds"] == SWITCH_SECONDS


async def test_a_renewal_that_fails_is_an_alarm_and_the_next_one_sets_the_switch_again(
    cluster: Cluster, session: aiohttp.ClientSession, world: AcornWorld, settings: dict[str, str]
) -> None:
    process = await cluster.process(**settings, **SWITCH).start()
    await until(lambda: bool(steps(world, "guarded")), lambda: process.log)
    world.close()
    await until(lambda: "venue_switch_not_renewed" in process.log, lambda: process.log)
    await world.start()
    before = len(steps(world, "guarded"))
    await until(lambda: len(steps(world, "guarded")) > before, lambda: process.log)


async def test_a_venue_does_not_get_an_adapter_with_another_form_of_ids(
    cluster: Cluster, session: aiohttp.ClientSession, world: AcornWorld, settings: dict[str, str]
) -> None:
    process = await cluster.process(**settings).start()
    await place(session, process, "key", **RESTING)
    await until_statuses(session, process, "WORKING")
    process.kill()
    # Our own protocol takes ids of 32 characters: it would not find the order under its UUID.
    process.settings["VENUE_URL_ACORN"] = world.url
    del process.settings["VENUE_SECRETS_ACORN"]
    process.spawn()
    assert await asyncio.to_thread(process.wait) != 0
    assert "VENUE_URL_ACORN: client order ids of acorn have another form" in process.log
    process.settings.update(acorn_settings(world.url))
    await process.start()
    await until_statuses(session, process, "WORKING")
