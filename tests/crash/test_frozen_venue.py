"""A venue process that is stopped with our orders in its input, and works through them when it continues."""

import signal
import time

import aiohttp

from tests.support.cluster import Cluster
from tests.support.polling import until
from tests.support.posts import bearer, post

ORDERS = 20
FROZEN_SECONDS = 25.0
# After the venue continues: well beyond window and lingering time, so that every resend has happened.
WATCHED_SECONDS = 25.0


async def test_a_frozen_venue_that_works_through_its_input_executes_nothing_twice(cluster: Cluster) -> None:
    # The venue executes every copy: its log then shows each resend of an order that it already had.
    venue = await cluster.broker(dedupe="none").start()
    process = await cluster.process(
        **venue.client_settings(VENUE_DEDUPE_SIM="while_open", VENUE_LOOKUP_SIM="all")
    ).start()
    headers = bearer("demo")
    try:
        async with aiohttp.ClientSession() as session:
            await post(session, process, headers, timeInForce="GTC")  # the venue is open for sending
            await until(lambda: len(venue.orders()) == 1)
            # The venue's engine takes an order a second after its gateway read it: well within the declared window.
            await venue.set_faults(accept_late=1)
            venue.send(signal.SIGSTOP)
            frozen_at = time.monotonic()
            for _ in range(ORDERS):
                await post(session, process, headers, timeInForce="GTC")
            await until(lambda: process.log.count("order_uncertain") >= ORDERS)
            await until(lambda: time.monotonic() - frozen_at >= FROZEN_SECONDS, pause_seconds=0.1)
            venue.send(signal.SIGCONT)
            continued_at = time.monotonic()

            async def all_executed() -> bool:
                if set(venue.orders().values()) != {1}:
                    return True  # the assertion below names the orders
                async with session.get(f"{process.url}/orders?limit=500", headers=headers) as response:
                    orders = (await response.json())["orders"]
                return len(orders) == ORDERS + 1 and {order["status"] for order in orders} == {"FILLED"}

            await until(all_executed, pause_seconds=0.2)
            await until(
                lambda: max(venue.orders().values()) > 1 or time.monotonic() - continued_at >= WATCHED_SECONDS,
                pause_seconds=0.2,
            )
    finally:
        venue.send(signal.SIGCONT)
    twice = [client_order_id for client_order_id, count in venue.orders().items() if count > 1]
    assert twice == [], f"{len(twice)} of {ORDERS} orders were executed twice"
    assert len(venue.orders()) == ORDERS + 1
