"""One partition of the topic as a source of events: messages wait here until the reader of the books takes them.

Filled by the thread that polls librdkafka, emptied by the event loop; while one is full, the thread takes no messages.
"""

import threading
from collections import deque
from typing import Protocol

from confluent_kafka import Message

from switchyard.adapters.kafka.messages import MessageReader
from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.journal.lines import Offset, SourcePosition
from switchyard.ports.bus import Page

# A page of the books. A partition with so many is full; the batch in which it gets full is added whole.
MESSAGES_MAX = 1_000
_PREFIX = "kafka:"


class Fetching(Protocol):
    """What a partition asks of the consumer; each may take a round trip."""

    async def fetch_from(self, partition: int, offset: int) -> None:
        """Fetch the partition's messages from this one on."""
        ...

    async def bounds(self, partition: int) -> tuple[int, int]:
        """Return the first message that the brokers still have, and the number of the next one to come."""
        ...

    async def end(self, partition: int) -> int:
        """Return the number of the next message to come, as far as it is known."""
        ...

    def has_room(self) -> None:
        """Take messages again: a partition that was full is not full any more."""
        ...


class PartitionSource:
    """ports.bus.Source on one partition."""

    start: SourcePosition = Offset()

    def __init__(self, topic_id: str, partition: int, fetching: Fetching, reader: MessageReader) -> None:
        self.name = source_name(topic_id, partition)
        self._reader = reader
        self.partition = partition
        self._fetching = fetching
        self._lock = threading.Lock()
        self._waiting: deque[Message] = deque()
        self._next: int | None = None
        """The message after the last one that was taken; none before the first fetch."""
        self._is_fetched = False
        self._problem: str | None = None

    async def check(self, position: SourcePosition) -> None:
        """Raise HistoryMismatch unless the brokers have the messages from this position on."""
        wanted = offset_in(position)
        first, end = await self._fetching.bounds(self.partition)
        if not first <= wanted <= end:
            raise HistoryMismatch(self._missing(wanted, f"it has {first} to {end - 1}"))

    async def page(self, after: SourcePosition, limit: int) -> Page:
        """The messages that have arrived; HistoryMismatch where the brokers do not have the next one."""
        wanted = offset_in(after)
        if self._next != wanted or not (self._is_fetched or self._waiting):
            await self._fetching.fetch_from(self.partition, wanted)
        with self._lock:
            if self._problem is not None:
                raise HistoryMismatch(self._problem)
            if self._next != wanted:
                return Page((), after)  # taken away meanwhile: what waits is of another position
            taken = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
            if taken:
                self._next = offset_of(taken[-1]) + 1
            has_room = len(taken) + len(self._waiting) >= MESSAGES_MAX > len(self._waiting)
        if has_room:
            self._fetching.has_room()
        if not taken:
            return Page((), after)
        return Page(self._reader.events_of(self.name, taken), Offset(offset_of(taken[-1]) + 1))

    async def lag(self, position: SourcePosition) -> int:
        """How many messages are after the position, repeats included."""
        return max(await self._fetching.end(self.partition) - offset_in(position), 0)

    @property
    def is_full(self) -> bool:
        """Whether so many messages wait that the reader has to take some first."""
        return len(self._waiting) >= MESSAGES_MAX

    def put(self, message: Message) -> None:
        """Add a message that has arrived; called by the thread."""
        with self._lock:
            expected = offset_of(self._waiting[-1]) + 1 if self._waiting else self._next
            if expected is None or offset_of(message) < expected:
                return  # of a fetch from another position
            self._waiting.append(message)

    def begin(self, offset: int) -> None:
        """It is fetched from this message on, and none of before will arrive; called by the thread.

        The event loop could not do it: the thread may be adding messages of before at that moment.
        """
        with self._lock:
            self._waiting.clear()
            self._next, self._is_fetched, self._problem = offset, True, None

    def stop(self) -> None:
        """It is not fetched any more; once its reader has taken what waits, it is fetched from there on.

        Called by the thread.
        """
        with self._lock:
            self._is_fetched = False

    def forget(self) -> None:
        """Drop what has arrived: the partition is not fetched any more, and its reader has to name a position again."""
        with self._lock:
            self._waiting.clear()
            self._next, self._is_fetched, self._problem = None, False, None

    def fail(self, error: str) -> None:
        """The brokers do not have the message to fetch; called by the thread."""
        with self._lock:
            self._problem = self._missing(self._next or 0, error)

    def _missing(self, wanted: int, why: str) -> str:
        return (
            f"partition {self.partition} of the topic does not have message {wanted}, which the books read next: "
            f"{why}. Messages were deleted before they were read, or the topic is not the one that the books have read"
        )


def source_name(topic_id: str, partition: int) -> str:
    """The name of a partition in the books; a topic that was created again has other ones."""
    return f"{_PREFIX}{topic_id}:{partition}"


def topic_id_of(source: str) -> str | None:
    """The id, with the number of partitions, of the topic that a source is of; none for the journal."""
    return source.removeprefix(_PREFIX).rpartition(":")[0] if source.startswith(_PREFIX) else None


def offset_of(message: Message) -> int:
    """The message's number in its partition."""
    offset = message.offset()
    assert offset is not None, "a message that was read has an offset"
    return offset


def offset_in(position: SourcePosition) -> int:
    """The next message of a partition that was read up to this position."""
    assert isinstance(position, Offset), f"{position} is no position in a partition"
    return position.next
