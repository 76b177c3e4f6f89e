"""Two workers at a venue that admits one session: one holds it, and the other takes over when that one is gone.

The broker's record is the judge: which sessions its requests named, one after the other, and what was executed.
"""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from switchyard.adapters.postgres.liveness import session_key
from switchyard.domain.ids import VenueName
from tests.support.acorn import AcornWorld, acorn_settings, acorn_world, plugin_path
from tests.support.cluster import Cluster
from tests.support.load import LoadClient
from tests.support.orders import PATIENT, get, place, until_all_final, until_statuses
from tests.support.polling import until
from tests.support.process import Process

TAKEN, LOST = "venue_session_taken", "venue_session_lost"
SENT_MIN = 10
# More than a worker that stands by needs to take a free session, many times over.
STANDBY_SECONDS = 4.0
# Of each key of the connection's lock, as pg_locks shows it: its upper and its lower half.
HALF = 2**32


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AcornWorld]:
    world = acorn_world(tmp_path / "broker")
    await world.start()
    yield world
    world.close()


@pytest.fixture
def settings(tmp_path: Path, world: AcornWorld, database_url: str) -> dict[str, str]:
    changes = {
        "PYTHONPATH": plugin_path(tmp_path / "plugin"),
        "SWITCHYARD_DATABASE_URL": database_url,
        "OUTBOX_STUCK_THRESHOLD_MIN": "0.05",
    }
    return acorn_settings(world.url, **changes) | {"VENUE_URL_ACORN": f"acorn-session:{world.url}"}


def executed(world: AcornWorld) -> Counter[str]:
    text = world.log.read_bytes()
    lines = [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
    return Counter(line["order"]["ref"] for line in lines if line["what"] == "traded")


async def two_workers(cluster: Cluster, settings: dict[str, str]) -> tuple[Process, Process, Process]:
    """A gateway, the worker that holds the session, and the one that stands by."""
    gateway = await cluster.process("gateway", "gateway", **settings).start()
    holder = await cluster.process("worker", "one", **settings).start()
    await until(lambda: TAKEN in holder.log, lambda: holder.log)
    standby = await cluster.process("worker", "two", **settings).start()
    return gateway, holder, standby


async def check(
    session: aiohttp.ClientSession, gateway: Process, world: AcornWorld, client: LoadClient, sessions: int
) -> None:
    """Assert that every order has ended, none was executed twice, and the sessions followed each other."""
    await client.insist(client.unknown)
    orders = await until_all_final(session, gateway)
    assert {order["orderId"] for order in orders} == set(client.acknowledged.values())
    counts = executed(world)
    assert set(counts.values()) <= {1}, "the broker executed a client order id twice"
    assert len(counts) == sum(order["status"] == "FILLED" for order in orders)
    named = await world.sessions()
    assert len(named) == len(set(named)) == sessions, f"a session was used beside another one: {named}"


async def cut_lock(database_url: str) -> None:
    """End the connection that holds the lock of the session, on the server."""
    connection = await asyncpg.connect(database_url)
    key = session_key(VenueName("acorn")) % HALF**2
    ended = await connection.fetchval(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_locks"
        " WHERE locktype = 'advisory' AND granted AND classid::bigint = $1 AND objid::bigint = $2",
        key // HALF,
        key % HALF,
    )
    await connection.close()
    assert ended == 1


@pytest.mark.parametrize("end", ["kill", "cut"])
async def test_a_worker_takes_the_session_of_one_that_is_gone(
    end: str,
    cluster: Cluster,
    session: aiohttp.ClientSession,
    world: AcornWorld,
    settings: dict[str, str],
    database_url: str,
) -> None:
    gateway, holder, standby = await two_workers(cluster, settings)
    client, stop = LoadClient(gateway), asyncio.Event()
    load = asyncio.create_task(client.load(stop))
    await until(lambda: len(executed(world)) > SENT_MIN, lambda: holder.log)
    assert TAKEN not in standby.log
    if end == "kill":
        holder.kill()
    else:
        await cut_lock(database_url)
        await until(lambda: LOST in holder.log, lambda: holder.log)
    await until(lambda: TAKEN in standby.log or holder.log.count(TAKEN) == 2, lambda: standby.log)
    before = len(executed(world))
    await until(lambda: len(executed(world)) > before + SENT_MIN, lambda: standby.log + holder.log)
    stop.set()
    await load
    await check(session, gateway, world, client, sessions=2)


async def test_a_worker_that_stands_still_keeps_the_session(
    cluster: Cluster, session: aiohttp.ClientSession, world: AcornWorld, settings: dict[str, str]
) -> None:
    gateway, holder, standby = await two_workers(cluster, settings)
    client = LoadClient(gateway)
    await client.insist(["key-1"])
    await until_all_final(session, gateway)
    holder.send(signal.SIGSTOP)
    await client.insist(["key-3", "key-5"])
    loop = asyncio.get_running_loop()
    since = loop.time()
    await until(lambda: loop.time() > since + STANDBY_SECONDS)
    assert TAKEN not in standby.log
    holder.send(signal.SIGCONT)
    await client.insist(["key-7"])
    await check(session, gateway, world, client, sessions=1)


async def test_the_holder_is_shown_and_sends_the_orders_of_all_lanes(
    cluster: Cluster, session: aiohttp.ClientSession, world: AcornWorld, settings: dict[str, str]
) -> None:
    gateway, holder, standby = await two_workers(cluster, settings)
    # Both workers own lanes by now, and these orders are in many of them.
    for number in range(8):
        headers = gateway.headers(account=f"acc-{number}", key="key")
        async with session.post(f"{gateway.url}/orders", json=PATIENT, headers=headers) as response:
            assert response.status == 202, await response.text()
    await until(lambda: len(executed(world)) == 8, lambda: holder.log + standby.log)

    async def is_shown() -> bool:
        [venue] = (await get(session, gateway, "/venues"))["venues"]
        return venue["session"] is not None and venue["session"]["worker"] in holder.log

    await until(is_shown, lambda: gateway.log)
    assert TAKEN not in standby.log


async def test_on_one_database_file_the_process_holds_the_session(
    cluster: Cluster, session: aiohttp.ClientSession, world: AcornWorld, settings: dict[str, str]
) -> None:
    alone = {name: value for name, value in settings.items() if name != "SWITCHYARD_DATABASE_URL"}
    process = await cluster.process(**alone).start()
    await place(session, process, "key")
    await until_statuses(session, process, "FILLED")
    await asyncio.to_thread(process.stop)
    await process.start()
    await place(session, process, "again")
    await until_all_final(session, process)
    assert len(set(await world.sessions())) == 2
