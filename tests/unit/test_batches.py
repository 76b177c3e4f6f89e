"""Questions that come together are asked together, and each caller gets its own answer."""

import asyncio
from collections.abc import Sequence

import structlog

from switchyard.adapters.redis.batches import Batches


class Oracle:
    """Doubles numbers, one batch after the other, when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_answer = asyncio.Event()
        self.was_asked = asyncio.Event()

    async def ask_all(self, numbers: Sequence[int]) -> list[int]:
        self.batches.append(list(numbers))
        self.was_asked.set()
        await self.may_answer.wait()
        return [2 * number for number in numbers]


async def test_what_arrives_while_one_is_under_way_goes_together_up_to_the_bound() -> None:
    oracle = Oracle()
    batches = Batches(oracle.ask_all, batch_max=4)
    first = asyncio.create_task(batches.ask(0))
    await oracle.was_asked.wait()
    others = [asyncio.create_task(batches.ask(number)) for number in range(1, 7)]
    await asyncio.sleep(0)
    oracle.may_answer.set()
    assert await asyncio.gather(first, *others) == [0, 2, 4, 6, 8, 10, 12]
    assert oracle.batches == [[0], [1, 2, 3, 4], [5, 6]]


async def test_a_question_right_after_an_answer_is_answered_too() -> None:
    oracle = Oracle()
    oracle.may_answer.set()
    batches = Batches(oracle.ask_all)
    assert [await batches.ask(number) for number in range(100)] == [2 * number for number in range(100)]


async def test_a_defect_in_the_asking_leaves_nobody_waiting() -> None:
    async def fail(numbers: Sequence[int]) -> list[int]:
        raise ZeroDivisionError

    batches = Batches(fail)
    with structlog.testing.capture_logs() as lines:
        one, other = await asyncio.gather(batches.ask(1), batches.ask(2))
    assert one is other is None
    assert [line["log_level"] for line in lines] == ["error"]


async def test_a_caller_that_leaves_takes_nobody_along() -> None:
    oracle = Oracle()
    batches = Batches(oracle.ask_all)
    leaver, stayer = asyncio.create_task(batches.ask(1)), asyncio.create_task(batches.ask(2))
    await oracle.was_asked.wait()
    leaver.cancel()
    oracle.may_answer.set()
    assert await stayer == 4


async def test_with_too_many_waiting_there_is_no_answer_at_once() -> None:
    oracle = Oracle()
    batches = Batches(oracle.ask_all, waiting_max=1)
    first = asyncio.create_task(batches.ask(1))
    await oracle.was_asked.wait()
    second = asyncio.create_task(batches.ask(2))
    await asyncio.sleep(0)
    assert await batches.ask(3) is None
    oracle.may_answer.set()
    assert (await first, await second) == (2, 4)


async def test_closing_lets_everybody_go_without_an_answer() -> None:
    oracle = Oracle()
    batches = Batches(oracle.ask_all, batch_max=1)
    waiting = [asyncio.create_task(batches.ask(number)) for number in range(3)]
    await oracle.was_asked.wait()
    await batches.close()
    assert await asyncio.gather(*waiting) == [None, None, None]
