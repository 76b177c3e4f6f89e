"""Two processes on copies of one data folder send to one broker: what they execute twice closes the venue for both."""

import asyncio
import shutil

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.evidence import tool_settings
from tests.support.orders import get, place, until_all_final, until_statuses
from tests.support.polling import until
from tests.support.process import Process, run_command
from tests.support.redis import RedisServer
from tests.support.venue_process import VenueProcess

KEYS = [f"key-{number}" for number in range(5)]


async def stopped_copies(
    cluster: Cluster, session: aiohttp.ClientSession, broker: VenueProcess, **settings: str
) -> list[Process]:
    """Two stopped processes on copies of one data folder, in which orders wait for the broker if it does not run."""
    first = cluster.process(name="first", **broker.client_settings(**settings))
    second = cluster.process(name="second", **broker.client_settings(**settings))
    await first.start()
    if not broker.is_running:
        for key in KEYS:
            await place(session, first, key)
    assert await asyncio.to_thread(first.stop) == 0
    shutil.copytree(first.folder / "var", second.folder / "var")
    return [first, second]


async def until_closed(session: aiohttp.ClientSession, process: Process) -> None:
    """Wait until the log shows why and `/health` shows the venue as closed."""

    async def is_closed() -> bool:
        health = await get(session, process, "/health")
        return "copy_suspected" in process.log and [venue["state"] for venue in health.get("venues", [])] == ["closed"]

    await until(is_closed, lambda: process.log)


@pytest.mark.parametrize("dedupe", ["open_only", "none"])
async def test_the_first_orders_that_two_copies_execute_close_the_venue_for_both(
    cluster: Cluster, session: aiohttp.ClientSession, dedupe: str
) -> None:
    # Reports come late, so that neither of the two has read of the other's order when it sends its own.
    broker = await cluster.broker(dedupe=dedupe, faults={"late_reports": 3}).start()
    first, second = copies = await stopped_copies(cluster, session, broker)
    await asyncio.gather(first.start(), second.start())
    for key in KEYS:
        await asyncio.gather(*(place(session, process, key) for process in copies))
    await until(lambda: broker.orders().total() == 2 * len(KEYS))
    for process in copies:
        await until_closed(session, process)
        await place(session, process, "after")
    assert await asyncio.to_thread(second.stop) == 0
    assert await asyncio.to_thread(first.stop) == 0
    await first.start()
    await until_closed(session, first)  # a restart does not open the venue
    assert broker.orders().total() == 2 * len(KEYS)

    # The copy has ended, and the operator declares that this database goes on.
    assert await asyncio.to_thread(first.stop) == 0
    ended = await asyncio.to_thread(run_command, "db", "restored", **tool_settings(first))
    assert ended.returncode == 0, ended.stderr
    await first.start()
    if dedupe == "none":  # nothing proves that the copy has not sent it: an operator decides
        await until_statuses(session, first, "FILLED", "UNKNOWN")
        assert broker.orders().total() == 2 * len(KEYS)
    else:
        await until_all_final(session, first)
        assert broker.orders().total() == 2 * len(KEYS) + 1


async def test_a_copy_that_starts_after_its_orders_were_executed_closes_the_venue(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker = cluster.broker()
    first, second = await stopped_copies(cluster, session, broker)
    await asyncio.gather(broker.start(), first.start())
    await until_all_final(session, first)
    await second.start()
    await until_closed(session, second)
    assert (await get(session, first, "/health"))["status"] == "ok"
    assert set(broker.orders().values()) == {1}


@pytest.mark.parametrize("shared", ["state folder", "Redis"])
async def test_a_copy_does_not_start_beside_a_running_one(
    cluster: Cluster, session: aiohttp.ClientSession, redis_server: RedisServer, shared: str
) -> None:
    broker = cluster.broker()
    common = {"SWITCHYARD_REDIS_URL": redis_server.url} if shared == "Redis" else {}
    if shared == "state folder":
        common = {"SWITCHYARD_STATE_DIR": str(cluster.folder / "state")}
    first, second = await stopped_copies(cluster, session, broker, **common)
    await first.start()
    second.spawn()
    assert await asyncio.to_thread(second.wait) == 4
    assert "two copies execute orders twice" in second.log
    first.kill()  # the lease of a process that was killed does not keep it from starting again
    await first.start()
    assert await asyncio.to_thread(first.stop) == 0
    await second.start()  # nobody renews the lease any more


async def test_a_lost_lease_alarms_and_stops_nothing(
    cluster: Cluster, session: aiohttp.ClientSession, redis_server: RedisServer
) -> None:
    broker = await cluster.broker().start()
    process = cluster.process(SWITCHYARD_REDIS_URL=redis_server.url, **broker.client_settings())
    before = redis_server.ask("KEYS", "switchyard:lease:*")
    await process.start()
    [lease] = [key for key in redis_server.ask("KEYS", "switchyard:lease:*") if key not in before]
    redis_server.ask("SET", lease, "another data folder")
    await until(lambda: "lease_lost" in process.log, lambda: process.log)
    ready = await get(session, process, "/health/ready")
    assert [check["status"] for check in ready["checks"] if check["check"] == "process"] == ["degraded"]
    await place(session, process, "key")
    await until_all_final(session, process)
    redis_server.ask("DEL", lease)
    await until(lambda: "lease_held_again" in process.log, lambda: process.log)
