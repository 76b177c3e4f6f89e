"""Several workers on one database: an account's orders in one symbol leave in the order of acceptance."""

import asyncio

import aiohttp
import asyncpg

from tests.support.cluster import Cluster
from tests.support.departures import Departures
from tests.support.orders import place, until_all_final
from tests.support.polling import until
from tests.support.process import Process

SYMBOLS = ("USDJPY", "EURUSD", "EURJPY", "GBPUSD", "AUDUSD", "BTC", "ETH", "XRP")
ORDERS_PER_PHASE = 100


class Posters:
    """Posts orders in every symbol, one after the other in each, until it is stopped."""

    def __init__(self, session: aiohttp.ClientSession, gateway: Process) -> None:
        self._session = session
        self._gateway = gateway
        self._stop = asyncio.Event()
        self.count = 0
        self._tasks = [asyncio.create_task(self._post(symbol)) for symbol in SYMBOLS]

    async def post_some_more(self) -> None:
        target = self.count + ORDERS_PER_PHASE
        await until(lambda: self.count >= target)

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def _post(self, symbol: str) -> None:
        while not self._stop.is_set():
            await place(self._session, self._gateway, symbol=symbol, price=1_000_000)
            self.count += 1


async def test_orders_keep_their_sequence_while_workers_start_and_stop(
    cluster: Cluster, database_url: str, session: aiohttp.ClientSession
) -> None:
    broker = cluster.broker()
    settings = broker.client_settings(SWITCHYARD_DATABASE_URL=database_url)
    gateway = cluster.process("gateway", "gateway", **settings)
    workers = [cluster.process("worker", f"worker-{number}", **settings) for number in range(3)]
    observer = await asyncpg.connect(database_url)

    async def lanes_have_owners(count: int) -> bool:
        return bool(await observer.fetchval("SELECT count(DISTINCT worker) FROM outbox_lanes") == count)

    try:
        await asyncio.gather(*(process.start() for process in (broker, gateway, workers[0])))
        posters = Posters(session, gateway)
        await posters.post_some_more()
        await workers[1].start()
        await until(lambda: lanes_have_owners(2))
        await posters.post_some_more()
        await workers[2].start()
        await until(lambda: lanes_have_owners(3))
        assert await asyncio.to_thread(workers[0].stop) == 0
        await posters.post_some_more()
        await posters.stop()
        await until_all_final(session, gateway)
        departures = await Departures.read(observer)
    finally:
        await observer.close()
    departures.check()
    assert len(departures.senders()) == 3
    assert set(broker.executions().values()) == {1}
