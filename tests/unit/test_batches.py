"""Concurrent requests are sent in one batch, and each caller gets its own reply."""

import asyncio
from collections.abc import Sequence

import structlog

from switchyard.adapters.redis.host import Batches


class Doubler:
    """A server that doubles numbers, and replies once `may_reply` is set."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_reply = asyncio.Event()
        self.was_called = asyncio.Event()

    async def ask_all(self, numbers: Sequence[int]) -> list[int]:
        self.batches.append(list(numbers))
        self.was_called.set()
        await self.may_reply.wait()
        return [2 * number for number in numbers]


async def test_requests_that_arrive_during_a_batch_form_the_next_ones_up_to_the_bound() -> None:
    doubler = Doubler()
    batches = Batches(doubler.ask_all, batch_max=4)
    first = asyncio.create_task(batches.ask(0))
    await doubler.was_called.wait()
    others = [asyncio.create_task(batches.ask(number)) for number in range(1, 7)]
    await asyncio.sleep(0)
    doubler.may_reply.set()
    assert await asyncio.gather(first, *others) == [0, 2, 4, 6, 8, 10, 12]
    assert doubler.batches == [[0], [1, 2, 3, 4], [5, 6]]


async def test_a_request_right_after_a_reply_gets_its_reply_too() -> None:
    doubler = Doubler()
    doubler.may_reply.set()
    batches = Batches(doubler.ask_all)
    assert [await batches.ask(number) for number in range(100)] == [2 * number for number in range(100)]


async def test_an_unexpected_error_releases_every_waiting_caller() -> None:
    async def fail(numbers: Sequence[int]) -> list[int]:
        raise ZeroDivisionError

    batches = Batches(fail)
    with structlog.testing.capture_logs() as lines:
        replies = await asyncio.gather(batches.ask(1), batches.ask(2))
    assert list(replies) == [None, None]
    assert [(line["event"], line["log_level"]) for line in lines] == [("redis_batch_failed", "error")]


async def test_cancelling_one_caller_does_not_affect_the_others() -> None:
    doubler = Doubler()
    batches = Batches(doubler.ask_all)
    cancelled, waiting = asyncio.create_task(batches.ask(1)), asyncio.create_task(batches.ask(2))
    await doubler.was_called.wait()
    cancelled.cancel()
    doubler.may_reply.set()
    assert await waiting == 4


async def test_a_full_queue_returns_no_reply_at_once() -> None:
    doubler = Doubler()
    batches = Batches(doubler.ask_all, waiting_max=1)
    first = asyncio.create_task(batches.ask(1))
    await doubler.was_called.wait()
    second = asyncio.create_task(batches.ask(2))
    await asyncio.sleep(0)
    assert await batches.ask(3) is None
    doubler.may_reply.set()
    assert (await first, await second) == (2, 4)


async def test_closing_releases_every_waiting_caller_without_a_reply() -> None:
    doubler = Doubler()
    batches = Batches(doubler.ask_all, batch_max=1)
    waiting = [asyncio.create_task(batches.ask(number)) for number in range(3)]
    await doubler.was_called.wait()
    await batches.close()
    assert await asyncio.gather(*waiting) == [None, None, None]
