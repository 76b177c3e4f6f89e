"""A broker that answers some requests twice: a second response on a connection never decides about the next request.

The judge is how often the broker executed each order, and that no executed order has another end than its fill.
"""

import asyncio
from collections import Counter
from functools import partial

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.orders import all_orders, place, until_all_final
from tests.support.polling import until
from tests.support.process import Process
from tests.support.second_responses import Broker, a_broker

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
        if connections == "one request each":
            await until(lambda: len(broker.executions) == ORDERS, lambda: f"{len(broker.executions)}\n{process.log}")
            orders = await until_all_final(session, process)
            assert Counter(order["status"] for order in orders) == {"FILLED": ORDERS}
        else:
            await until(partial(are_settled, session, process, broker), lambda: f"{broker.executions}\n{process.log}")
            assert broker.unasked > 0
        assert set(broker.executions.values()) == {1}, "an order was executed twice"


async def are_settled(session: aiohttp.ClientSession, process: Process, broker: Broker) -> bool:
    """Whether each order that was executed is filled, and each other one is in doubt.

    A connection that is closed because of a second response may carry a request that the broker has not read. A broker
    that answers unasked is not believed when it says that the order is absent.
    """
    statuses = Counter(order["status"] for order in await all_orders(session, process))
    executed = len(broker.executions)
    return statuses == Counter({"FILLED": executed, "UNKNOWN": ORDERS - executed})
