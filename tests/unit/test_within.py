"""`within`: a time limit that measures the server, not how busy the event loop of this process is."""

import asyncio
import time

import pytest

from switchyard.adapters.redis.host import within


async def test_a_reply_that_arrived_in_time_counts_even_if_the_loop_reads_it_late() -> None:
    arrived = asyncio.Event()

    async def exchange() -> str:
        await arrived.wait()
        await asyncio.sleep(0)  # parsing takes one more turn of the loop
        return "reply"

    loop = asyncio.get_running_loop()
    loop.call_later(0.001, arrived.set)
    # Blocks the loop past both timers, as a burst of requests would.
    loop.call_soon(time.sleep, 0.02)
    assert await within(0.002, exchange()) == "reply"


async def test_a_missing_reply_times_out_and_its_task_is_cancelled() -> None:
    ended = asyncio.Event()

    async def exchange() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        await within(0.001, exchange())
    assert ended.is_set()


async def test_errors_and_cancellations_are_passed_on() -> None:
    async def fail() -> None:
        raise OSError("no route")

    with pytest.raises(OSError, match="no route"):
        await within(60, fail())
    waiting = asyncio.create_task(within(60, asyncio.Event().wait()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
