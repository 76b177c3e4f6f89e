"""An older database is restored, the venue has no lookup and the fill was read before the key is repeated."""

import asyncio

import aiohttp

from tests.support.backups import SqliteBackup, declare_restored
from tests.support.cluster import Cluster
from tests.support.orders import place, until_all_final
from tests.support.polling import until


async def test_the_fill_of_a_lost_order_reaches_the_order_of_the_repeated_key(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker = await cluster.broker(dedupe="none").start()
    process = await cluster.process(**broker.client_settings()).start()
    backup = SqliteBackup(cluster.folder)
    process.stop()
    backup.take()
    await process.start()
    await place(session, process, "lost")
    await until_all_final(session, process)
    process.stop()
    backup.restore()
    await asyncio.to_thread(declare_restored, process)
    await process.start()
    await until(lambda: "report_unmatched" in process.log, lambda: process.log)

    await place(session, process, "lost")

    [order] = await until_all_final(session, process)
    assert (order["status"], order["filledQty"]) == ("FILLED", 1000)
    assert sum(broker.orders().values()) == 1
