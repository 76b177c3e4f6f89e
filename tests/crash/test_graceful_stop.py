"""A worker that is asked to stop completes its sends and leaves no order in doubt."""

import asyncio

import aiohttp

from tests.support.cluster import Cluster
from tests.support.load import LoadClient
from tests.support.orders import all_orders, until_all_final
from tests.support.polling import until

STOPS = 5
ORDERS_PER_STOP = 60
# Few sends at a time, so that every stop finds some of them under way.
FEW_SLOTS = {"OUTBOX_BATCH_SIZE": "4", "OUTBOX_PARALLELISM": "1"}


async def test_a_worker_stopped_under_load_leaves_no_order_in_doubt(
    cluster: Cluster, database_url: str, session: aiohttp.ClientSession
) -> None:
    # A venue of class C, where an order in doubt would stay in doubt.
    broker = cluster.broker(dedupe="none")
    settings = broker.client_settings(**FEW_SLOTS, SWITCHYARD_DATABASE_URL=database_url)
    gateway = cluster.process("gateway", "gateway", **settings)
    worker = cluster.process("worker", "worker", **settings)
    client = LoadClient(gateway)
    await asyncio.gather(broker.start(), gateway.start())
    # Odd numbers are orders that may wait.
    for number in range(1, 2 * STOPS * ORDERS_PER_STOP, 2):
        await client.post(session, f"key-{number}")
    for stop in range(1, STOPS + 1):
        await worker.start()
        await until(lambda: broker.executions().total() >= stop * ORDERS_PER_STOP // 2)  # noqa: B023
        assert await asyncio.to_thread(worker.stop) == 0
    statuses = {order["status"] for order in await all_orders(session, gateway)}
    assert not statuses & {"UNKNOWN", "SENDING"}
    await worker.start()
    await until_all_final(session, gateway)
    assert set(broker.executions().values()) == {1}
