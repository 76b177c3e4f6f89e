"""A gateway queues orders that another process sends; that process also sends orders of its own from their commits."""

import asyncio

import aiohttp
import asyncpg
import pytest

from tests.support.cluster import Cluster
from tests.support.departures import Departures
from tests.support.orders import place, until_all_final
from tests.support.planted import planted_command

SYMBOLS = ("USDJPY", "EURUSD", "EURJPY", "GBPUSD")
PAIRS = 40


async def test_an_order_sent_from_its_commit_does_not_pass_one_that_another_gateway_queued(
    cluster: Cluster, database_url: str, session: aiohttp.ClientSession
) -> None:
    departures = await orders_over_two_gateways(cluster, database_url, session)
    departures.check()


async def test_the_harness_detects_an_append_that_does_not_look_at_the_queue(
    cluster: Cluster, database_url: str, session: aiohttp.ClientSession
) -> None:
    departures = await orders_over_two_gateways(
        cluster, database_url, session, planted_command("attempts_are_not_judged"), pairs=3
    )
    with pytest.raises(AssertionError, match="was sent before an earlier one"):
        departures.check()


async def orders_over_two_gateways(
    cluster: Cluster, url: str, session: aiohttp.ClientSession, command: list[str] | None = None, pairs: int = PAIRS
) -> Departures:
    broker = await cluster.broker().start()
    settings = broker.client_settings(SWITCHYARD_DATABASE_URL=url)
    gateway, sender = cluster.process("gateway", "gateway", **settings), cluster.process("up", "sender", **settings)
    sender.command = command or sender.command
    await asyncio.gather(gateway.start(), sender.start())

    # Once it has sent an order, it owns its lanes and its venue is open.
    await place(session, sender, price=1_000_000)
    await until_all_final(session, sender)

    async def post_pairs(symbol: str) -> None:
        for _ in range(pairs):
            for process in (gateway, sender):
                await place(session, process, symbol=symbol, price=1_000_000)

    await asyncio.gather(*map(post_pairs, SYMBOLS))
    await until_all_final(session, gateway)
    observer = await asyncpg.connect(url)
    try:
        return await Departures.read(observer)
    finally:
        await observer.close()
