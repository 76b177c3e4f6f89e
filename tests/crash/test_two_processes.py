"""Two whole processes over one database, killed and paused under load: first attempts begin in both of them."""

import asyncio
import random
import signal

import pytest

from tests.support.cluster import Cluster
from tests.support.exactly_once import CLASSES, check_acknowledged, settled
from tests.support.load import LoadClient
from tests.support.polling import until

ROUNDS = 3


@pytest.mark.parametrize("dedupe", CLASSES)
async def test_two_processes_killed_and_paused_under_load_lose_and_double_nothing(
    dedupe: str, cluster: Cluster, database_url: str
) -> None:
    broker = await cluster.broker(dedupe=dedupe).start()
    settings = broker.client_settings(SWITCHYARD_DATABASE_URL=database_url)
    processes = [cluster.process("up", name, **settings) for name in ("first", "second")]
    await asyncio.gather(*(process.start() for process in processes))
    # The same keys at both: each order is posted twice.
    clients = [LoadClient(process) for process in processes]
    chance = random.Random(11)
    for number in range(ROUNDS):
        stop = asyncio.Event()
        loads = [asyncio.create_task(client.load(stop)) for client in clients]
        accepted = len(broker.orders())
        await until(lambda accepted=accepted: len(broker.orders()) > accepted + 60)  # type: ignore[misc]
        await asyncio.sleep(chance.uniform(0.0, 0.3))  # a different moment of each round
        killed, paused = processes if number % 2 else reversed(processes)
        paused.send(signal.SIGSTOP)
        await asyncio.sleep(chance.uniform(0.5, 4.0))  # shorter and longer than an attempt may wait to be sent
        killed.kill()
        paused.send(signal.SIGCONT)
        stop.set()
        await asyncio.gather(*loads)
        await killed.start()
    keys = {key for client in clients for key in (*client.acknowledged, *client.unknown)}
    for client in clients:
        await client.insist(keys)
    orders = await settled(processes[0], broker)
    for client in clients:
        check_acknowledged(client, orders)
