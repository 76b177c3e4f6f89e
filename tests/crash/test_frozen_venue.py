"""A venue process that is stopped with our orders in its input, and works through them when it continues."""

import asyncio
import signal
import time
from pathlib import Path

import aiohttp

from tests.support.load import pages
from tests.support.posts import bearer, post
from tests.support.process import Process, until
from tests.support.simulator import Simulator, venue_settings

ORDERS = 20
FROZEN_SECONDS = 25.0
# After the venue continues: well beyond window and lingering time, so that every resend has happened.
WATCHED_SECONDS = 25.0


async def test_a_frozen_venue_that_works_through_its_input_executes_nothing_twice(tmp_path: Path) -> None:
    # The venue executes every copy: its log then shows each resend of an order that it already had.
    simulator = Simulator(tmp_path / "venue", "none")
    process = Process(tmp_path, **venue_settings("open_only", simulator))
    try:
        await asyncio.gather(simulator.start(), process.start())
        async with aiohttp.ClientSession() as session:
            headers = bearer("demo")
            await post(session, process, headers, timeInForce="GTC")  # the venue is open for sending
            await until(lambda: len(simulator.orders()) == 1)
            # The venue's engine takes an order a second after its gateway read it: well within the declared window.
            await simulator.set_faults(session, {"accept_late": 1})
            simulator.send(signal.SIGSTOP)
            frozen_at = time.monotonic()
            for _ in range(ORDERS):
                await post(session, process, headers, timeInForce="GTC")
            await until(lambda: process.log.count("order_uncertain") >= ORDERS)
            await until(lambda: time.monotonic() - frozen_at >= FROZEN_SECONDS, pause_seconds=0.1)
            simulator.send(signal.SIGCONT)
            continued_at = time.monotonic()

            async def all_executed() -> bool:
                if set(simulator.orders().values()) != {1}:
                    return True  # the assertion below names the orders
                orders = await pages(session, process)
                return len(orders) == ORDERS + 1 and {order["status"] for order in orders} == {"FILLED"}

            await until(all_executed, pause_seconds=0.2)
            await until(
                lambda: max(simulator.orders().values()) > 1 or time.monotonic() - continued_at >= WATCHED_SECONDS,
                pause_seconds=0.2,
            )
        twice = [client_id for client_id, count in simulator.orders().items() if count > 1]
        assert twice == [], f"{len(twice)} of {ORDERS} orders were executed twice"
        assert len(simulator.orders()) == ORDERS + 1
    finally:
        simulator.send(signal.SIGCONT)
        process.close()
        simulator.close()
