"""Questions that come together are asked together."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import structlog

log = structlog.get_logger()

Question = TypeVar("Question")
Reply = TypeVar("Reply")

# Large enough that a round trip costs each little, small enough that the answers come within the time for one.
BATCH_MAX = 64
# Beyond it, going without the answer is quicker than waiting for it.
WAITING_MAX = 4_096


class Batches(Generic[Question, Reply]):
    """One batch is under way at a time; what arrives meanwhile is the next one."""

    def __init__(
        self,
        ask_all: Callable[[Sequence[Question]], Awaitable[Sequence[Reply]]],
        *,
        batch_max: int = BATCH_MAX,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._ask_all = ask_all
        self._batch_max = batch_max
        self._waiting_max = waiting_max
        self._waiting: deque[tuple[Question, asyncio.Future[Reply | None]]] = deque()
        self._under_way: list[tuple[Question, asyncio.Future[Reply | None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, question: Question) -> Reply | None:
        """The answer, or none where too many are waiting."""
        if len(self._waiting) >= self._waiting_max:
            return None
        answer: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._task is None:
            # A task of its own: a caller that is cancelled must not take the others' answers along.
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._ended)
        return await answer

    async def close(self) -> None:
        """Stop asking; whoever waits gets none."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while self._waiting:
            count = min(len(self._waiting), self._batch_max)
            self._under_way = [self._waiting.popleft() for _ in range(count)]
            answers = await self._ask_all([question for question, _ in self._under_way])
            for (_, waiter), answer in zip(self._under_way, answers, strict=True):
                if not waiter.done():
                    waiter.set_result(answer)
        self._task = None  # here and not when it has ended: whoever asks in between needs a new one

    def _ended(self, task: asyncio.Task[None]) -> None:
        """After a cancellation, or a defect, nobody is left waiting."""
        if self._task is not task:
            return
        self._task = None
        if not task.cancelled():
            log.error("asking the server failed unexpectedly", exc_info=task.exception())
        left = [*self._under_way, *self._waiting]
        self._under_way.clear()
        self._waiting.clear()
        for _, waiter in left:
            if not waiter.done():
                waiter.set_result(None)
