"""Senders that are paused with a committed attempt and resume later: no other worker sends in their place.

The version check protects the rows and not the venue: a paused sender can still write to its socket. So its orders
are sent again only after it is proven dead.
"""

import asyncio
import json
import signal
import time
from datetime import UTC, datetime

import aiohttp
import asyncpg
import pytest

from switchyard.domain.orders.outbox import LANES
from switchyard.ports.journal import KERNEL_HOLD
from switchyard.ports.venue import SEND_LIMIT, TURN_LIMIT
from tests.support.cluster import Cluster
from tests.support.dying import BOUNDARY_REACHED, pausing_command
from tests.support.exactly_once import in_every_class
from tests.support.load import LoadClient
from tests.support.orders import Snapshot, place, until_all
from tests.support.planted import planted_command
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.process import COMMAND, run_command
from tests.support.upgraded import upgraded_database

# The send of a living worker counts as stuck after 0.6 s.
STUCK = {"OUTBOX_STUCK_THRESHOLD_MIN": "0.01"}
WINDOW = {"VENUE_WINDOW_SEC_SIM": "1"}
# Much longer than a worker waits that may send again: in class B that is a run of the resolver after the acceptance
# window and after the time in which a dead sender's last bytes may arrive.
WATCHED_SECONDS = {
    "forever": 2.0,
    "open_only": 6.0 + (TURN_LIMIT + SEND_LIMIT + KERNEL_HOLD).total_seconds(),
    "none": 2.0,
}
# A worker looks for stuck sends every five seconds, so it does so right after such a pause.
PAUSE_SECONDS = 5.0
KEYS = [f"key-{number}" for number in range(1, 11, 2)]
# A lane belongs to an account and symbol: enough symbols that both workers own some of the lanes.
SYMBOLS = ("USDJPY", "EURUSD", "EURJPY", "GBPUSD", "AUDUSD", "BTC", "ETH", "XRP", "AAPL", "MSFT", "GBPJPY", "NZDUSD")


async def test_no_worker_sends_in_the_place_of_a_paused_sender_until_it_is_dead(
    cluster: Cluster, postgres_server: PostgresServer
) -> None:
    async def scenario(dedupe: str) -> None:
        await two_paused_senders(dedupe, cluster.within(dedupe), postgres_server, [str(COMMAND)])

    await in_every_class(scenario)


async def test_the_harness_detects_a_worker_that_takes_a_paused_sender_for_dead(
    cluster: Cluster, postgres_server: PostgresServer
) -> None:
    with pytest.raises(AssertionError, match="another worker sent in the place of a living sender"):
        await two_paused_senders("open_only", cluster, postgres_server, planted_command("the_living_are_dead"))


async def two_paused_senders(
    dedupe: str, cluster: Cluster, postgres_server: PostgresServer, survivor_command: list[str]
) -> None:
    """Two workers share the orders and pause; in the end one of them resumes and the other is killed."""
    broker = cluster.broker(dedupe=dedupe)
    url = await upgraded_database(postgres_server)
    settings = broker.client_settings(**WINDOW, **STUCK, SWITCHYARD_DATABASE_URL=url)
    gateway = cluster.process("gateway", "gateway", **settings)
    resumed, killed, survivor = (cluster.process("worker", name, **settings) for name in ("resumed", "killed", "third"))
    resumed.command = killed.command = pausing_command("after_the_attempt_is_committed")
    survivor.command = survivor_command
    async with aiohttp.ClientSession() as session:
        # The venue starts last, so that both workers find all their orders waiting and claim them at once.
        await asyncio.gather(*(process.start() for process in (gateway, resumed, killed)))
        await until_shared(url, [LANES // 2] * 2)
        for symbol in SYMBOLS:
            await place(session, gateway, symbol=symbol, price=1_000_000)
        await broker.start()
        await until(lambda: all(BOUNDARY_REACHED in paused.log for paused in (resumed, killed)))
        # These are all orders, except those in a lane that has just moved from one worker to the other.
        first, second = await asyncio.to_thread(claimed, settings)
        await survivor.start()

        def hangs(order: Snapshot) -> bool:
            executed = set(broker.executions())
            assert not (first | second) & executed, "another worker sent in the place of a living sender"
            if order["orderId"] not in first | second:
                return True
            return order["status"] == "UNKNOWN" and age_seconds(order) > WATCHED_SECONDS[dedupe]

        await until_all(session, gateway, hangs)
        # The survivor owns all lanes then, and one more order shows that it sends the orders that are due.
        await until_shared(url, [LANES])
        await place(session, gateway, price=1_000_000)
        await until_all(
            session, gateway, lambda order: order["orderId"] in first | second or order["status"] == "FILLED"
        )
        await until_all(session, gateway, hangs)

        resumed.send(signal.SIGCONT)
        await until(lambda: first <= set(broker.executions()) or second <= set(broker.executions()))
        left = second if first <= set(broker.executions()) else first
        assert not left & set(broker.executions()), "another worker sent in the place of a living sender"
        killed.kill()
        in_doubt = left if dedupe == "none" else set()
        orders = await until_all(
            session,
            gateway,
            lambda order: order["status"] == ("UNKNOWN" if order["orderId"] in in_doubt else "FILLED"),
        )
    for process in (resumed, survivor):
        assert await asyncio.to_thread(process.stop) == 0
    assert set(broker.check_nothing_twice()) == {order["orderId"] for order in orders} - in_doubt


async def until_shared(database_url: str, shares: list[int]) -> None:
    """Wait until the workers own these numbers of lanes."""
    connection = await asyncpg.connect(database_url)

    async def are_shared() -> bool:
        rows = await connection.fetch("SELECT count(*) FROM outbox_lanes GROUP BY worker")
        return [row["count"] for row in rows] == shares

    try:
        await until(are_shared)
    finally:
        await connection.close()


def claimed(settings: dict[str, str]) -> list[set[str]]:
    """The orders that each worker is sending."""
    listed = json.loads(run_command("outbox", "list", "--status", "sending", "--json", **settings).stdout)
    shares: dict[str, set[str]] = {}
    for entry in listed:
        shares.setdefault(entry["row"]["worker"], set()).add(entry["id"])
    return list(shares.values())


async def test_a_single_process_on_sqlite_that_was_paused_resumes_and_sends_once(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker = cluster.broker(dedupe="none")
    process = cluster.process(**broker.client_settings(**STUCK))
    process.command = pausing_command("after_the_attempt_is_committed")
    await process.start()
    await LoadClient(process).insist(KEYS)
    await broker.start()
    await until(lambda: BOUNDARY_REACHED in process.log)
    paused_at = time.monotonic()
    await until(lambda: time.monotonic() > paused_at + PAUSE_SECONDS)
    process.send(signal.SIGCONT)
    orders = await until_all(session, process, lambda order: order["status"] == "FILLED")
    assert process.stop() == 0
    assert set(broker.check_nothing_twice()) == {order["orderId"] for order in orders}


def age_seconds(order: Snapshot) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(order["updatedAt"])).total_seconds()
