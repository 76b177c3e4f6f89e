"""A worker that is paused during its sends: no other worker sends in its place, and its late outcomes are ignored."""

import asyncio
import signal

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.exactly_once import CLASSES
from tests.support.orders import all_orders, place, until_statuses
from tests.support.planted import planted_command
from tests.support.polling import until
from tests.support.process import run_command

ORDERS = 5


@pytest.mark.parametrize("dedupe", CLASSES)
async def test_a_worker_paused_during_its_sends_executes_once_and_changes_no_order_afterwards(
    dedupe: str, cluster: Cluster, database_url: str, session: aiohttp.ClientSession
) -> None:
    await pause_during_sends(dedupe, cluster, database_url, session)


@pytest.mark.parametrize("defect", ["fence_removed", "stale_states_are_believed"])
async def test_the_harness_detects_a_paused_worker_that_ignores_the_fence(
    defect: str, cluster: Cluster, database_url: str, session: aiohttp.ClientSession
) -> None:
    with pytest.raises(AssertionError, match="the paused worker changed an order"):
        await pause_during_sends("forever", cluster, database_url, session, planted_command(defect))


async def pause_during_sends(
    dedupe: str, cluster: Cluster, url: str, session: aiohttp.ClientSession, command: list[str] | None = None
) -> None:
    broker = await cluster.broker(dedupe=dedupe).start()
    settings = broker.client_settings(OUTBOX_STUCK_THRESHOLD_MIN="0.05", SWITCHYARD_DATABASE_URL=url)
    gateway = cluster.process("gateway", "gateway", **settings)
    paused, second = (cluster.process("worker", name, **settings) for name in ("paused", "second"))
    paused.command = command or paused.command

    async def nothing_is_sending() -> bool:
        listed = await asyncio.to_thread(run_command, "outbox", "list", "--status", "sending", "--json", **settings)
        return listed.stdout == "[]\n"

    await gateway.start()
    await paused.start()
    await broker.set_faults(slow_bytes=0.2)  # the responses take much longer than the time until the pause
    for number in range(ORDERS):
        await place(session, gateway, f"key-{number}")
    await until(lambda: len(broker.executions()) == ORDERS)
    paused.send(signal.SIGSTOP)
    await broker.set_faults(slow_bytes=0.0)
    await second.start()
    # The venue's reports are evidence in every class; the sends count as stuck after the threshold.
    await until_statuses(session, gateway, "FILLED")
    await until(nothing_is_sending)
    versions = {order["orderId"]: order["version"] for order in await all_orders(session, gateway)}
    paused.send(signal.SIGCONT)
    second.kill()
    # Once it has sent a new order, the paused worker is running again.
    await place(session, gateway, "afterwards")
    await until(lambda: len(broker.executions()) == ORDERS + 1)
    assert paused.stop() == 0  # it has written every outcome of the earlier sends that it was going to write
    orders = await all_orders(session, gateway)
    after = {order["orderId"]: order["version"] for order in orders if order["orderId"] in versions}
    assert after == versions, "the paused worker changed an order"
    assert set(broker.check_nothing_twice()) == {order["orderId"] for order in orders}
