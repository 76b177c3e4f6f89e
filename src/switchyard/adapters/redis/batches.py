"""Questions that come together are asked together."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")

# Large enough that a round trip costs each little, small enough that the answers come within the time for one.
BATCH_MAX = 64
# Beyond it, going without the answer is quicker than waiting for it.
WAITING_MAX = 4_096


class Batches(Generic[Question, Answer]):
    """One batch is under way at a time; what arrives meanwhile is the next one."""

    def __init__(
        self,
        ask_all: Callable[[Sequence[Question]], Awaitable[Sequence[Answer]]],
        *,
        batch_max: int = BATCH_MAX,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._ask_all = ask_all
        self._batch_max = batch_max
        self._waiting_max = waiting_max
        self._waiting: deque[tuple[Question, asyncio.Future[Answer | None]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def ask(self, question: Question) -> Answer | None:
        """The answer, or none where too many are waiting."""
        if len(self._waiting) >= self._waiting_max:
            return None
        answer: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._task is None:
            # A task of its own: a caller that is cancelled must not take the others' answers along.
            self._task = asyncio.create_task(self._run())
        return await answer

    async def close(self) -> None:
        """Stop asking; whoever waits gets none."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        batch: list[tuple[Question, asyncio.Future[Answer | None]]] = []
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._batch_max))]
                answers = await self._ask_all([question for question, _ in batch])
                for (_, waiter), answer in zip(batch, answers, strict=True):
                    if not waiter.done():
                        waiter.set_result(answer)
        finally:
            self._task = None
            # Only after a cancellation or a defect is anybody left.
            for _, waiter in (*batch, *self._waiting):
                if not waiter.done():
                    waiter.set_result(None)
            self._waiting.clear()
