"""Fan-out: a topic's messages are stored once, and readers are woken a few at a time, one account after the other."""

import asyncio
from contextlib import AsyncExitStack, aclosing

from switchyard.flow.readers import stream
from switchyard.flow.readers.folds import TRIM_MIN, Backlog, Message
from switchyard.flow.readers.stream import Subscription
from tests.support.stream_journal import ANN, BOB, DEADLINE_SECONDS, FIRST, StreamJournal, dispatch, hub_over

CROWD = 200


class Readers:
    """Subscribers that read as soon as they are woken, and the order in which they do."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, subscription: Subscription, messages: int = 1) -> None:
        self.tasks.append(asyncio.create_task(self._read(name, subscription, messages)))

    async def _read(self, name: str, subscription: Subscription, messages: int) -> None:
        async with aclosing(subscription.batches(DEADLINE_SECONDS)) as batches:
            while messages > 0:
                messages -= len(await anext(batches))
        self.order.append(name)

    async def all_wait(self) -> None:
        """Give every reader the time to start waiting."""
        for _ in range(3):
            await asyncio.sleep(0)


async def test_a_crowd_of_readers_is_woken_a_few_at_a_time_and_everyone_gets_the_message() -> None:
    journal, readers = StreamJournal(), Readers()
    hub = hub_over(journal)
    async with AsyncExitStack() as stack:
        for _ in range(CROWD):
            readers.start("ann", await stack.enter_async_context(hub.subscribe("account", ANN)))
        await readers.all_wait()
        await journal.update(ANN)
        await dispatch(hub)
        # The loop has made a few steps since, and an order could have been served in each of them.
        await asyncio.sleep(0)
        assert len(readers.order) <= CROWD // 4
        async with asyncio.timeout(DEADLINE_SECONDS):
            await asyncio.gather(*readers.tasks)
        assert len(readers.order) == CROWD


async def test_another_account_does_not_wait_for_the_crowd() -> None:
    journal, readers = StreamJournal(), Readers()
    hub = hub_over(journal)
    async with AsyncExitStack() as stack:
        for _ in range(CROWD):
            readers.start("ann", await stack.enter_async_context(hub.subscribe("account", ANN)))
        readers.start("bob", await stack.enter_async_context(hub.subscribe("account", BOB)))
        await readers.all_wait()
        await journal.update(ANN)
        await journal.update(BOB)
        await dispatch(hub)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await asyncio.gather(*readers.tasks)
        assert readers.order.index("bob") < stream.READERS_PER_TURN


async def test_an_urgent_subscriber_does_not_wait_for_a_turn() -> None:
    journal, readers = StreamJournal(), Readers()
    hub = hub_over(journal)
    async with AsyncExitStack() as stack:
        for _ in range(CROWD):
            readers.start("stream", await stack.enter_async_context(hub.subscribe("order", FIRST)))
        readers.start("request", await stack.enter_async_context(hub.subscribe("order", FIRST, urgent=True)))
        await readers.all_wait()
        await journal.update(ANN)
        await dispatch(hub)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await asyncio.gather(*readers.tasks)
        assert readers.order[0] == "request"


async def test_messages_that_arrive_between_turns_are_all_delivered() -> None:
    journal, readers = StreamJournal(), Readers()
    hub = hub_over(journal)
    async with AsyncExitStack() as stack:
        for _ in range(50):
            readers.start("ann", await stack.enter_async_context(hub.subscribe("account", ANN)), messages=30)
        for _ in range(30):
            await journal.update(ANN)
            await dispatch(hub)
            await asyncio.sleep(0)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await asyncio.gather(*readers.tasks)


def _message(number: int) -> Message:
    return Message(number, "order_update", b"{}")


async def test_a_backlog_keeps_only_what_a_subscriber_has_still_to_read() -> None:
    backlog = Backlog(capacity=10_000)
    subscription = _subscriber(backlog)
    for number in range(10 * TRIM_MIN):
        assert backlog.add(_message(number)) == 0
        subscription.next_number = backlog.end
    assert len(backlog._messages) <= TRIM_MIN


async def test_a_backlog_ends_a_subscriber_beyond_its_capacity_and_stays_bounded() -> None:
    backlog = Backlog(capacity=1_000)
    slow, swift = _subscriber(backlog), _subscriber(backlog)
    ended = 0
    for number in range(5_000):
        ended += backlog.add(_message(number))
        swift.next_number = backlog.end
        assert len(backlog._messages) <= 1_000 + 1_000 // 16 + 1
        if not ended:
            assert [message.id for message in backlog.read(slow.next_number, 1)] == [0]
    assert ended == 1
    assert slow.ended.result() == "slow"
    assert not swift.ended.done()


def _subscriber(backlog: Backlog) -> Subscription:
    async def nothing(_subscription: Subscription):  # type: ignore[no-untyped-def]
        return
        yield

    subscription = Subscription(("account", "ann"), backlog, missed=nothing, page_size=200, urgent=False)
    backlog.subscriptions.add(subscription)
    return subscription
