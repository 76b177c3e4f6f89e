"""A partition hands out the messages after the position that its reader names, whatever the thread adds meanwhile."""

from typing import Any, cast

import pytest
from confluent_kafka import Message

from switchyard.adapters.kafka.messages import MessageReader, PartitionSource
from switchyard.domain.journal.lines import Offset
from switchyard.telemetry.metrics import Metrics


class Numbered:
    """A message of which only the number matters."""

    def __init__(self, number: int) -> None:
        self._number = number

    def offset(self) -> int:
        return self._number


class Thread:
    """The thread of the bus: it is adding a batch when it is told to fetch from elsewhere."""

    def __init__(self) -> None:
        self.source = PartitionSource(
            "topic", 0, self, MessageReader("installation", (), Metrics().backoffice.rejected)
        )
        self.batch: list[int] = []
        self.is_revoked = False
        self.fetches: list[int] = []

    async def fetch_from(self, partition: int, offset: int) -> None:
        self.add(*self.batch)
        if not self.is_revoked:
            self.fetches.append(offset)
            self.source.begin(offset)
            self.add(offset, offset + 1)

    async def bounds(self, partition: int) -> tuple[int, int]:
        raise NotImplementedError

    async def end(self, partition: int) -> int:
        raise NotImplementedError

    def has_room(self) -> None:
        pass

    def add(self, *numbers: int) -> None:
        for number in numbers:
            self.source.put(cast(Message, Numbered(number)))


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Thread:
    monkeypatch.setattr(
        MessageReader, "events_of", lambda _, source, messages: tuple(message.offset() for message in messages)
    )
    return Thread()


async def read(thread: Thread, offset: int) -> tuple[Any, ...]:
    page = await thread.source.page(Offset(offset), 10)
    assert page.position == Offset(offset + len(page.events))
    return page.events


async def test_a_batch_of_before_is_not_taken_for_the_messages_of_a_new_position(thread: Thread) -> None:
    assert await read(thread, 100) == (100, 101)
    thread.batch = [102, 103, 104]
    assert await read(thread, 50) == (50, 51)


async def test_a_partition_that_is_not_fetched_any_more_is_read_to_what_waits_and_then_fetched_from_there(
    thread: Thread,
) -> None:
    assert await read(thread, 100) == (100, 101)
    thread.add(102)
    thread.source.stop()
    assert await read(thread, 102) == (102,)
    thread.batch = [107, 108]
    assert await read(thread, 103) == (103, 104)
    assert thread.fetches == [100, 103]


async def test_messages_of_another_position_are_not_handed_out_after_the_partition_was_taken_away(
    thread: Thread,
) -> None:
    assert await read(thread, 100) == (100, 101)
    thread.add(102)
    thread.is_revoked = True
    assert await read(thread, 50) == ()
