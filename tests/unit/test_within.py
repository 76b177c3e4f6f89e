"""A bound of time that judges the other side, not how busy this process is."""

import asyncio
import time

import pytest

from switchyard.adapters.redis.host import within


async def test_what_was_there_in_time_counts_however_late_the_loop_looks() -> None:
    arrived = asyncio.Event()

    async def exchange() -> str:
        await arrived.wait()
        await asyncio.sleep(0)  # parsed in one more turn of the loop
        return "answer"

    loop = asyncio.get_running_loop()
    loop.call_later(0.001, arrived.set)
    # The loop is held up beyond both moments, as by a burst of requests, before anything of it is seen.
    loop.call_soon(time.sleep, 0.02)
    assert await within(0.002, exchange()) == "answer"


async def test_what_does_not_come_is_given_up_and_cleaned_up() -> None:
    ended = asyncio.Event()

    async def exchange() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        await within(0.001, exchange())
    assert ended.is_set()


async def test_an_error_is_passed_on_and_a_cancellation_too() -> None:
    async def fail() -> None:
        raise OSError("no route")

    with pytest.raises(OSError, match="no route"):
        await within(60, fail())
    waiting = asyncio.create_task(within(60, asyncio.Event().wait()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
