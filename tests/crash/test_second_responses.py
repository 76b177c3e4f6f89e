"""A broker that answers some requests twice: a second response on a connection never decides about the next request.

The judge is how often the broker executed each order, and that no executed order has another end than its fill.
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


@pytest.mark.parametrize("dedupe", ["none", "while_open"])
async def test_a_second_response_never_decides_about_another_order(
    dedupe: str, cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    async with a_broker(lost_every=7) as broker:
        process = await cluster.process(**broker.settings(dedupe)).start()
        symbols = ("USDJPY", "EURUSD", "GBPUSD", "EURJPY")
        for number in range(ORDERS // len(symbols)):
            keys = {symbol: f"{symbol}-{number}" for symbol in symbols}
            await asyncio.gather(*(place(session, process, key, symbol=symbol) for symbol, key in keys.items()))
        await until(lambda: len(broker.executions) == ORDERS, lambda: f"{len(broker.executions)}\n{process.log}")
        orders = await until_all_final(session, process)
        assert Counter(order["status"] for order in orders) == {"FILLED": ORDERS}
        assert broker.unasked > 0
        assert set(broker.executions.values()) == {1}, "an order was executed twice"
