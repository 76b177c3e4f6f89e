"""One subscriber's queue of stream messages. `StreamHub` fills it; an HTTP stream or `/do/order` reads it."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Literal

from switchyard.flow.readers.messages import Message, Topic

EndReason = Literal["slow", "closing"]


class Subscription:
    """A subscriber's position in the stream of an account or an order; created by `StreamHub.subscribe`."""

    def __init__(
        self,
        topic: Topic,
        *,
        missed: "Callable[[Subscription], AsyncIterator[list[Message]]]",
        queue_capacity: int,
        page_size: int,
    ) -> None:
        self.topic = topic
        self.start = 0
        """Messages above this number arrive in the queue; those up to it are read from the ring or the journal."""
        self.place = 0
        """The number of the newest message that was returned, or the subscriber's own last event id."""
        self.ended: asyncio.Future[EndReason] = asyncio.get_running_loop().create_future()
        self._missed = missed
        self._queue: deque[Message] = deque()
        self._queue_capacity = queue_capacity
        self._page_size = page_size
        self._arrived = asyncio.Event()

    async def batches(self, silence_seconds: float) -> AsyncGenerator[list[Message], None]:
        """Missed messages, then new ones; an empty batch after `silence_seconds` without a message."""
        async for batch in self._missed(self):
            if self.ended.done():
                return
            self.place = batch[-1].id
            yield batch
        while not self.ended.done():
            if batch := list(self._take()):
                self.place = batch[-1].id
                yield batch
            elif not self._queue:
                self._arrived.clear()
                try:
                    async with asyncio.timeout(silence_seconds):
                        await self._arrived.wait()
                except TimeoutError:
                    yield []

    def offer(self, message: Message) -> bool:
        """Queue a message; false if the queue was full, which ends the subscription."""
        if self.ended.done():
            return True
        if len(self._queue) >= self._queue_capacity:
            self.end("slow")
            return False
        self._queue.append(message)
        self._arrived.set()
        return True

    def end(self, reason: EndReason) -> None:
        """Deliver no more messages; a new subscription can continue after `place`."""
        if not self.ended.done():
            self.ended.set_result(reason)
            self._queue.clear()
            self._arrived.set()

    def _take(self) -> Iterator[Message]:
        for _ in range(min(len(self._queue), self._page_size)):
            message = self._queue.popleft()
            # The queue fills from registration on, so its first messages may have been replayed already.
            if message.id > self.place:
                yield message
