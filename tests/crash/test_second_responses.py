"""A broker that answers some requests twice: a second response on a connection never decides about the next request.

The judge is how often the broker executed each order.
"""

import asyncio
from collections import Counter

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.orders import place, until_all_final
from tests.support.polling import until
from tests.support.second_responses import a_broker

ORDERS = 120


@pytest.mark.parametrize("connections", ["one request each", "reused"])
@pytest.mark.parametrize("dedupe", ["none", "while_open"])
async def test_a_second_response_never_decides_about_another_order(
    dedupe: str, connections: str, cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    async with a_broker(lost_every=7) as broker:
        settings = {"VENUE_REUSE_CONNECTIONS_SIM": "true"} if connections == "reused" else {}
        process = await cluster.process(**broker.settings(dedupe, **settings)).start()
        symbols = ("USDJPY", "EURUSD", "GBPUSD", "EURJPY")
        for number in range(ORDERS // len(symbols)):
            keys = {symbol: f"{symbol}-{number}" for symbol in symbols}
            await asyncio.gather(*(place(session, process, key, symbol=symbol) for symbol, key in keys.items()))
        await until(lambda: len(broker.executions) == ORDERS, lambda: f"{len(broker.executions)}\n{process.log}")
        orders = await until_all_final(session, process)
        assert Counter(order["status"] for order in orders) == {"FILLED": ORDERS}
        assert set(broker.executions.values()) == {1}, "an order was executed twice"
        assert broker.unasked > 0 or connections != "reused"
