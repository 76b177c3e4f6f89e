"""Workers with different settings of one venue on one database: the second does not start until the first is gone."""

import asyncio
import signal

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.orders import place, until_all_final
from tests.support.polling import until


async def test_a_worker_that_declares_another_class_of_a_venue_does_not_start_beside_the_first(
    cluster: Cluster, database_url: str
) -> None:
    settings = (await cluster.broker().start()).client_settings(SWITCHYARD_DATABASE_URL=database_url)
    first = await cluster.process("worker", "first", **settings).start()
    second = cluster.process("worker", "second", **{**settings, "VENUE_DEDUPE_SIM": "none"})
    second.spawn()
    assert await asyncio.to_thread(second.wait) == 4
    for words in ("venue sim", "dedupe=permanent", "dedupe=none", "VENUE_..._SIM", "stop every worker"):
        assert words in second.log, second.log
    assert first.is_running

    assert await asyncio.to_thread(first.stop) == 0
    await second.start()
    assert await asyncio.to_thread(second.stop) == 0


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_worker_with_other_settings_starts_after_one_that_is_gone_and_that_one_ends_if_it_comes_back(
    cluster: Cluster, database_url: str, session: aiohttp.ClientSession, signal_number: signal.Signals
) -> None:
    broker = await cluster.broker().start()
    settings = broker.client_settings(SWITCHYARD_DATABASE_URL=database_url)
    gateway = await cluster.process("gateway", "gateway", **settings).start()
    first = await cluster.process("worker", "first", **settings).start()
    first.send(signal_number)
    second = cluster.process("worker", "second", **{**settings, "VENUE_WINDOW_SEC_SIM": "3"})
    await second.start()
    await place(session, gateway, price=1000)
    await until_all_final(session, gateway)
    if signal_number == signal.SIGSTOP:
        first.send(signal.SIGCONT)
        await until(lambda: not first.is_running, lambda: first.log)
        assert await asyncio.to_thread(first.wait) == 4
        assert "window_sec=3" in first.log and "window_sec=2" in first.log
