"""One subscriber's position in the messages of a topic; an HTTP stream or `/do/order` reads them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Literal

from switchyard.flow.readers.backlog import Backlog
from switchyard.flow.readers.messages import Message, Topic

EndReason = Literal["slow", "closing"]


class Subscription:
    """A subscriber's position in the stream of an account or an order; created by `StreamHub.subscribe`."""

    def __init__(
        self,
        topic: Topic,
        backlog: Backlog,
        *,
        missed: "Callable[[Subscription], AsyncIterator[list[Message]]]",
        page_size: int,
        urgent: bool,
    ) -> None:
        self.topic = topic
        self.urgent = urgent
        self.start = 0
        """Messages above this number arrive in the backlog; those up to it are read from the ring or the journal."""
        self.place = 0
        """The number of the newest message that was returned, or the subscriber's own last event id."""
        self.next_number = backlog.end
        """The backlog's number of the message to read next."""
        self.ended: asyncio.Future[EndReason] = asyncio.get_running_loop().create_future()
        self._backlog = backlog
        self._waiting = backlog.urgent if urgent else backlog.waiting
        self._missed = missed
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
            if taken := self._backlog.read(self.next_number, self._page_size):
                self.next_number += len(taken)
                # The backlog fills from registration on, so its first messages may have been replayed already.
                if batch := [message for message in taken if message.id > self.place]:
                    self.place = batch[-1].id
                    yield batch
            elif not await self._has_arrived_within(silence_seconds):
                yield []

    def wake(self) -> bool:
        """Let the subscriber read; false if it was not waiting."""
        if self not in self._waiting:
            return False
        self._waiting.remove(self)
        self._arrived.set()
        return True

    def end(self, reason: EndReason) -> None:
        """Deliver no more messages; a new subscription can continue after `place`."""
        if not self.ended.done():
            self.ended.set_result(reason)
            self.wake()

    async def _has_arrived_within(self, seconds: float) -> bool:
        self._arrived.clear()
        self._waiting.add(self)
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(self)
        return True
