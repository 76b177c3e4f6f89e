"""Where a stream begins, and how it goes on after its last event: from memory, from the journal, or anew."""

import asyncio
import random
from contextlib import aclosing

import pytest

from switchyard.domain.events import encode
from switchyard.domain.ids import AccountId, OrderId
from switchyard.flow.readers import stream
from switchyard.flow.readers.stream import Message, Scope, StreamHub, Subscription
from tests.support.stream_book import ANN, BOB, DEADLINE_SECONDS, FIRST, SECOND, Book, dispatch, hub_over, take


async def test_a_new_stream_begins_now() -> None:
    book = Book()
    before = await book.update()
    hub = hub_over(book)
    async with hub.subscribe("account", ANN) as subscription:
        assert subscription.place == before
        after = await book.update()
        await dispatch(hub)
        assert [message.id for message in await take(subscription, 1)] == [after]


async def test_a_resume_needs_no_database_while_the_ring_has_the_place() -> None:
    book = Book()
    hub = hub_over(book, buffer_size=2)
    async with hub.subscribe("account", ANN):
        numbers = [await book.update() for _ in range(5)]
        await dispatch(hub)
        async with hub.subscribe("account", ANN, numbers[2]) as resumed:
            assert [message.id for message in await take(resumed, 2)] == numbers[3:]
        assert book.replays == 0


async def test_a_resume_from_before_the_ring_comes_from_the_journal() -> None:
    book = Book()
    hub = hub_over(book, buffer_size=2)
    async with hub.subscribe("account", ANN):
        numbers = [await book.update() for _ in range(5)]
        await dispatch(hub)
        async with hub.subscribe("account", ANN, numbers[1]) as resumed:
            assert [message.id for message in await take(resumed, 3)] == numbers[2:]
        assert book.replays > 0


async def test_a_resume_after_a_restart_comes_from_the_journal() -> None:
    book = Book()
    numbers = [await book.update(order_id=order) for order in (FIRST, SECOND, FIRST, SECOND, FIRST)]
    async with hub_over(book).subscribe("order", FIRST, numbers[0]) as resumed:
        assert [message.id for message in await take(resumed, 2)] == [numbers[2], numbers[4]]


async def test_a_long_past_is_replayed_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STREAM_PAGE", 3)
    book = Book()
    numbers = [await book.update(ANN if number % 2 else BOB) for number in range(40)]
    async with hub_over(book).subscribe("account", ANN, 0) as resumed:
        assert [message.id for message in await take(resumed, 20)] == numbers[1::2]
    assert book.replays >= 7


async def test_a_reader_that_another_gateway_served_further_is_told_nothing_twice() -> None:
    book = Book()
    hub = hub_over(book)
    async with hub.subscribe("account", BOB):
        seen, unseen = await book.update(), await book.update()
        async with hub.subscribe("account", ANN, seen) as resumed:
            await dispatch(hub)
            assert [message.id for message in await take(resumed, 1)] == [unseen]


def resync(scope: Scope, id: str, last: int, oldest: int, endpoint: str) -> Message:
    data = {"scope": scope, "id": id, "lastEventId": last, "oldestAvailableId": oldest, "eventsEndpoint": endpoint}
    return Message(oldest, "resync_required", encode(data))


@pytest.mark.parametrize("buffer_size", [0, 1_000])
async def test_too_far_behind_means_a_new_start_and_the_stream_goes_on(buffer_size: int) -> None:
    book = Book()
    hub = hub_over(book, behind_max=3, buffer_size=buffer_size)
    async with hub.subscribe("account", BOB):
        numbers = [await book.update() for _ in range(4)]
        await dispatch(hub)
        async with hub.subscribe("account", ANN, 0) as late, hub.subscribe("account", ANN, 1) as in_time:
            after = await book.update()
            await dispatch(hub)
            [advice, live] = await take(late, 2)
            assert advice == resync("account", ANN, 0, numbers[-1], "/accounts/ann/events")
            assert live.id == after
            assert [message.id for message in await take(in_time, 4)] == [*numbers[1:], after]


async def test_events_of_other_streams_do_not_count_as_behind() -> None:
    book = Book()
    missed = await book.update()
    for _ in range(10):
        await book.update(order_id=SECOND)
    async with hub_over(book, behind_max=3).subscribe("order", FIRST, 0) as resumed:
        assert [message.id for message in await take(resumed, 1)] == [missed]


async def test_an_id_older_than_the_journal_keeps_means_a_new_start() -> None:
    book = Book()
    numbers = [await book.update(order_id=OrderId("ord/1")) for _ in range(6)]
    book.oldest_seq = 4
    hub = hub_over(book)
    async with hub.subscribe("order", "ord/1", 2) as late, hub.subscribe("order", "ord/1", 3) as in_time:
        assert await take(late, 1) == [resync("order", "ord/1", 2, numbers[-1], "/orders/ord%2F1/events")]
        assert [message.id for message in await take(in_time, 3)] == numbers[3:]


async def test_an_id_that_the_journal_has_not_reached_means_a_new_start() -> None:
    book = Book()
    head = await book.update()
    hub = hub_over(book)
    async with hub.subscribe("account", ANN, 999) as subscription:
        assert await take(subscription, 1) == [resync("account", ANN, 999, head, "/accounts/ann/events")]
        after = await book.update()
        await dispatch(hub)
        assert [message.id for message in await take(subscription, 1)] == [after]


class Reader:
    """Reads a stream to its end over many connections to several gateways, losing some of what is on the way."""

    def __init__(self, chance: random.Random, scope: Scope, id: str) -> None:
        self.numbers: list[int] = []
        self.start: int | None = chance.choice([None, 0])
        self._chance = chance
        self._scope: Scope = scope
        self._id = id

    def wants(self, account: AccountId, order_id: OrderId) -> bool:
        return self._id == (account if self._scope == "account" else order_id)

    async def read(self, hubs: list[StreamHub], last: int) -> None:
        place = self.start
        while place is None or place < last:
            async with self._chance.choice(hubs).subscribe(self._scope, self._id, place) as subscription:
                if self.start is None:
                    self.start = subscription.place
                await self._read_some(subscription, last)
            place = self.numbers[-1] if self.numbers else self.start

    async def _read_some(self, subscription: Subscription, last: int) -> None:
        patience = self._chance.randrange(1, 30)
        async with aclosing(subscription.batches(0.001)) as batches:
            async for batch in batches:
                for message in batch[:patience]:
                    assert message.event == "order_update"
                    self.numbers.append(message.id)
                patience -= max(len(batch), 5)
                if patience <= 0 or subscription.place >= last:
                    return


@pytest.mark.parametrize("seed", range(100))
async def test_a_stream_over_many_connections_has_no_gap_and_no_repeat(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(stream, "STREAM_PAGE", chance.choice([1, 3, 200]))
    book = Book(chance)
    hubs = [hub_over(book, buffer_size=chance.choice([0, 2, 10, 1_000]), replays_max=2) for _ in range(2)]
    readers = [Reader(chance, "account", ANN), Reader(chance, "account", BOB), Reader(chance, "order", FIRST)]
    # Drawn beforehand, so that the readers know when they have come to the end.
    plan = [(chance.choice([ANN, BOB]), chance.choice([FIRST, SECOND])) for _ in range(80)]
    expected = [[number for number, made in enumerate(plan, 1) if reader.wants(*made)] for reader in readers]

    async def write() -> None:
        for account, order_id in plan:
            await book.update(account, order_id)
            for _ in range(chance.randrange(8)):
                await asyncio.sleep(0)

    async def feed(hub: StreamHub) -> None:
        while True:
            await hub.run_once()
            for _ in range(chance.randrange(1, 8)):
                await asyncio.sleep(0)

    feeds = [asyncio.create_task(feed(hub)) for hub in hubs]
    async with asyncio.timeout(DEADLINE_SECONDS):
        reading = (reader.read(hubs, numbers[-1]) for reader, numbers in zip(readers, expected, strict=True))
        await asyncio.gather(write(), *reading)
    for task in feeds:
        task.cancel()
    await asyncio.gather(*feeds, return_exceptions=True)
    for reader, numbers in zip(readers, expected, strict=True):
        assert reader.start is not None
        assert reader.numbers == [number for number in numbers if number > reader.start]
    assert [hub.subscribers for hub in hubs] == [0, 0]
