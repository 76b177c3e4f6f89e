"""Senders that are paused with an order in hand that the venue has not seen: a fence protects rows, not the venue.

A paused sender may still write to its socket, so nobody sends in its place before it is proven dead.
"""

import asyncio
import json
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from switchyard.domain.outbox import LANES
from switchyard.ports.venue import SEND_LIMIT
from tests.support.dying import LAST_WORDS, pausing_command
from tests.support.exactly_once import Snapshot, in_every_class
from tests.support.load import Client, pages
from tests.support.planted import planted_command
from tests.support.postgres import PostgresServer
from tests.support.process import COMMAND, ROOT, Process, run_command, until
from tests.support.simulator import Simulator, venue_settings

# A send hangs after this many seconds.
STUCK = {"OUTBOX_STUCK_THRESHOLD_MIN": "0.01"}
# Much longer than one takes who may send again: where ids are not known for good, a look of the resolver behind the
# acceptance window and the time that a sender's last bytes may take.
WINDOW = {"VENUE_WINDOW_SEC_SIM": "1"}
WATCHED_SECONDS = {"forever": 2.0, "open_only": 6.0 + SEND_LIMIT.total_seconds(), "none": 2.0}
# A living worker looks for hanging sends every five seconds: after such a pause it is about to do so.
PAUSE_SECONDS = 5.0
KEYS = [f"key-{number}" for number in range(1, 11, 2)]
# Lanes are given out by account and symbol: enough of them for both workers to have some.
SYMBOLS = ("USDJPY", "EURUSD", "EURJPY", "GBPUSD", "AUDUSD", "BTC", "ETH", "XAU", "SOL", "XAG", "GBPJPY", "EURGBP")


async def test_nobody_sends_in_the_place_of_a_paused_sender_until_it_is_dead(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    async def scenario(dedupe: str) -> None:
        await two_paused_senders(dedupe, tmp_path / dedupe, postgres_server, [str(COMMAND)])

    await in_every_class(scenario)


async def test_a_worker_that_took_the_paused_for_dead_would_be_noticed(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    with pytest.raises(AssertionError, match="somebody sent in the place of a living sender"):
        await two_paused_senders("open_only", tmp_path, postgres_server, planted_command("the_living_are_dead"))


async def two_paused_senders(
    dedupe: str, folder: Path, postgres_server: PostgresServer, survivor_command: list[str]
) -> None:
    """Two workers share the orders and pause; one of them goes on in the end, the other one dies."""
    simulator = Simulator(folder / "venue", dedupe)
    settings = {
        **venue_settings(dedupe, simulator),
        **WINDOW,
        **STUCK,
        "SWITCHYARD_DATABASE_URL": postgres_server.create_database(),
        "PYTHONPATH": str(ROOT),
    }
    url = settings["SWITCHYARD_DATABASE_URL"]
    upgraded = await asyncio.to_thread(run_command, "db", "upgrade", **settings)
    assert upgraded.returncode == 0, upgraded.stderr
    gateway = Process(folder / "gateway", "gateway", **settings)
    going_on, killed, survivor = (
        Process(folder / name, "worker", **settings) for name in ("going-on", "killed", "survivor")
    )
    going_on.command = killed.command = pausing_command("after_the_attempt_is_committed")
    survivor.command = survivor_command
    try:
        # The venue comes last, so that each of the two finds all of its share waiting, and claims it at once.
        await asyncio.gather(*(process.start() for process in (gateway, going_on, killed)))
        await until_shared(url, [LANES // 2] * 2)
        for symbol in SYMBOLS:
            await place(gateway, symbol)
        await simulator.start()
        await until(lambda: all(LAST_WORDS in paused.log for paused in (going_on, killed)))
        first, second = await asyncio.to_thread(
            claimed, settings
        )  # all there is, but for a lane that has just changed hands
        await survivor.start()

        def hangs(order: Snapshot) -> bool:
            assert not (first | second) & set(simulator.executions()), "somebody sent in the place of a living sender"
            if order["orderId"] not in first | second:
                return True
            return order["status"] == "UNKNOWN" and age_seconds(order) > WATCHED_SECONDS[dedupe]

        await until_seen(gateway, hangs)
        # The survivor has taken all lanes over, and one more order shows that it sends whatever is due.
        await until_shared(url, [LANES])
        await place(gateway, SYMBOLS[0])
        await until_seen(gateway, lambda order: order["orderId"] in first | second or order["status"] == "FILLED")
        await until_seen(gateway, hangs)

        going_on.send(signal.SIGCONT)
        await until(lambda: first <= set(simulator.executions()) or second <= set(simulator.executions()))
        left = second if first <= set(simulator.executions()) else first
        assert not left & set(simulator.executions())
        killed.kill()
        in_doubt = left if dedupe == "none" else set()
        orders = await until_seen(
            gateway, lambda order: order["status"] == ("UNKNOWN" if order["orderId"] in in_doubt else "FILLED")
        )
        for process in (going_on, survivor):
            assert await asyncio.to_thread(process.stop) == 0
        assert set(simulator.check_nothing_twice()) == {order["orderId"] for order in orders} - in_doubt
    finally:
        for process in (gateway, going_on, killed, survivor, simulator):
            process.close()


async def until_shared(database_url: str, wanted: list[int]) -> None:
    """Wait until there are so many workers with so many lanes each."""
    connection = await asyncpg.connect(database_url)

    async def are_shared() -> bool:
        shares = await connection.fetch("SELECT count(*) FROM outbox_lanes GROUP BY worker")
        return [share["count"] for share in shares] == wanted

    try:
        await until(are_shared)
    finally:
        await connection.close()


async def place(gateway: Process, symbol: str) -> None:
    body = {"symbol": symbol, "side": "BUY", "type": "LIMIT", "price": 1_000_000, "qty": 1000}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{gateway.url}/orders", json=body, headers=gateway.headers()) as response,
    ):
        assert response.status == 202, await response.text()


def claimed(settings: dict[str, str]) -> list[set[str]]:
    """The orders that each worker is sending."""
    listed = json.loads(run_command("outbox", "list", "--status", "sending", "--json", **settings).stdout)
    shares: dict[str, set[str]] = {}
    for one in listed:
        shares.setdefault(one["row"]["worker"], set()).add(one["id"])
    return list(shares.values())


async def test_a_whole_process_on_sqlite_that_was_paused_goes_on_and_sends_once(tmp_path: Path) -> None:
    simulator = Simulator(tmp_path / "venue", "none")
    process = Process(tmp_path, **venue_settings("none", simulator), **STUCK, PYTHONPATH=str(ROOT))
    process.command = pausing_command("after_the_attempt_is_committed")
    client = Client(process)
    try:
        await process.start()
        await client.insist(KEYS)
        await simulator.start()
        await until(lambda: LAST_WORDS in process.log)
        paused_at = time.monotonic()
        await until(lambda: time.monotonic() > paused_at + PAUSE_SECONDS)
        process.send(signal.SIGCONT)
        orders = await until_seen(process, lambda order: order["status"] == "FILLED")
        assert process.stop() == 0
        assert set(simulator.check_nothing_twice()) == {order["orderId"] for order in orders}
    finally:
        process.close()
        simulator.close()


async def until_seen(gateway: Process, wanted: Callable[[Snapshot], bool]) -> list[Snapshot]:
    """All orders, once each of them is like this."""
    found: list[Snapshot] = []

    async def reached() -> bool:
        found[:] = await pages(session, gateway)
        return all(map(wanted, found))

    async with aiohttp.ClientSession() as session:
        await until(reached, pause_seconds=0.1)
    return found


def age_seconds(order: Snapshot) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(order["updatedAt"])).total_seconds()
