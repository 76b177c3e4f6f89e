"""Where a stream starts, and how it resumes: from the ring, from the journal, or with `resync_required`."""

import asyncio
import random
from contextlib import aclosing

import pytest

from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.events import encode
from switchyard.flow.readers.folds import Message, Scope
from switchyard.flow.readers.stream import StreamHub, Subscription
from tests.support.stream_journal import (
    ANN,
    BOB,
    BOBS,
    DEADLINE_SECONDS,
    FIRST,
    SECOND,
    StreamJournal,
    dispatch,
    hub_over,
    take,
)


async def test_a_new_stream_starts_at_the_head() -> None:
    journal = StreamJournal()
    before = await journal.update()
    hub = hub_over(journal)
    async with hub.subscribe("account", ANN) as subscription:
        assert subscription.place == before
        after = await journal.update()
        await dispatch(hub)
        assert [message.id for message in await take(subscription, 1)] == [after]


async def test_a_resume_within_the_ring_needs_no_database() -> None:
    journal = StreamJournal()
    hub = hub_over(journal, buffer_size=2)
    async with hub.subscribe("account", ANN):
        numbers = [await journal.update() for _ in range(5)]
        await dispatch(hub)
        async with hub.subscribe("account", ANN, numbers[2]) as resumed:
            assert [message.id for message in await take(resumed, 2)] == numbers[3:]
        assert journal.replays == 0


async def test_a_resume_reads_what_the_ring_has_from_before_a_failover_again() -> None:
    journal = StreamJournal()
    hub = hub_over(journal)
    async with hub.subscribe("account", ANN):
        before = await journal.update()
        await dispatch(hub)
        journal.history = "of the promoted server"
        async with hub.subscribe("account", ANN, before - 1) as resumed:
            assert [message.id for message in await take(resumed, 1)] == [before]
        assert (replays := journal.replays) > 0
        after = await journal.update()
        await dispatch(hub)
        async with hub.subscribe("account", ANN, before) as resumed:
            assert [message.id for message in await take(resumed, 1)] == [after]
        assert journal.replays == replays, "the ring has what came since"
        async with hub.subscribe("account", ANN, before - 1) as resumed:
            assert [message.id for message in await take(resumed, 2)] == [before, after]
        assert journal.replays > replays


async def test_a_resume_from_before_the_ring_reads_the_journal() -> None:
    journal = StreamJournal()
    hub = hub_over(journal, buffer_size=2)
    async with hub.subscribe("account", ANN):
        numbers = [await journal.update() for _ in range(5)]
        await dispatch(hub)
        async with hub.subscribe("account", ANN, numbers[1]) as resumed:
            assert [message.id for message in await take(resumed, 3)] == numbers[2:]
        assert journal.replays > 0


async def test_a_resume_after_a_restart_reads_the_journal() -> None:
    journal = StreamJournal()
    numbers = [await journal.update(order_id=order) for order in (FIRST, SECOND, FIRST, SECOND, FIRST)]
    async with hub_over(journal).subscribe("order", FIRST, numbers[0]) as resumed:
        assert [message.id for message in await take(resumed, 2)] == [numbers[2], numbers[4]]


async def test_a_long_past_is_replayed_page_by_page() -> None:
    journal = StreamJournal()
    numbers = [await journal.update(ANN if number % 2 else BOB) for number in range(40)]
    async with hub_over(journal, page_size=3).subscribe("account", ANN, 0) as resumed:
        assert [message.id for message in await take(resumed, 20)] == numbers[1::2]
    assert journal.replays >= 7


async def test_a_reader_ahead_of_this_gateway_gets_no_message_twice() -> None:
    journal = StreamJournal()
    hub = hub_over(journal)
    async with hub.subscribe("account", BOB):
        seen, unseen = await journal.update(), await journal.update()
        async with hub.subscribe("account", ANN, seen) as resumed:
            await dispatch(hub)
            assert [message.id for message in await take(resumed, 1)] == [unseen]


def resync(scope: Scope, id: str, last: int, oldest: int, endpoint: str) -> Message:
    data = {"scope": scope, "id": id, "lastEventId": last, "oldestAvailableId": oldest, "eventsEndpoint": endpoint}
    return Message(oldest, "resync_required", encode(data))


@pytest.mark.parametrize("buffer_size", [0, 1_000])
async def test_a_reader_too_far_behind_gets_resync_and_then_new_messages(buffer_size: int) -> None:
    journal = StreamJournal()
    hub = hub_over(journal, behind_max=3, buffer_size=buffer_size)
    async with hub.subscribe("account", BOB):
        numbers = [await journal.update() for _ in range(4)]
        await dispatch(hub)
        async with hub.subscribe("account", ANN, 0) as late, hub.subscribe("account", ANN, 1) as in_time:
            after = await journal.update()
            await dispatch(hub)
            [resync_required, live] = await take(late, 2)
            assert resync_required == resync("account", ANN, 0, numbers[-1], "/accounts/ann/events")
            assert live.id == after
            assert [message.id for message in await take(in_time, 4)] == [*numbers[1:], after]


async def test_events_of_other_orders_do_not_count_as_behind() -> None:
    journal = StreamJournal()
    missed = await journal.update()
    for _ in range(10):
        await journal.update(order_id=SECOND)
    async with hub_over(journal, behind_max=3).subscribe("order", FIRST, 0) as resumed:
        assert [message.id for message in await take(resumed, 1)] == [missed]


async def test_an_id_older_than_the_journal_gets_resync() -> None:
    journal = StreamJournal()
    numbers = [await journal.update(order_id=OrderId("ord/1")) for _ in range(6)]
    journal.oldest_seq = 4
    hub = hub_over(journal)
    async with hub.subscribe("order", "ord/1", 2) as late, hub.subscribe("order", "ord/1", 3) as in_time:
        assert await take(late, 1) == [resync("order", "ord/1", 2, numbers[-1], "/orders/ord%2F1/events")]
        assert [message.id for message in await take(in_time, 3)] == numbers[3:]


async def test_an_id_beyond_the_head_gets_resync() -> None:
    journal = StreamJournal()
    head = await journal.update()
    hub = hub_over(journal)
    async with hub.subscribe("account", ANN, 999) as subscription:
        assert await take(subscription, 1) == [resync("account", ANN, 999, head, "/accounts/ann/events")]
        after = await journal.update()
        await dispatch(hub)
        assert [message.id for message in await take(subscription, 1)] == [after]


class Reader:
    """Reads a stream over many connections to several gateways; a connection may drop messages that it was sent."""

    def __init__(self, chance: random.Random, scope: Scope, id: str) -> None:
        self.numbers: list[int] = []
        self.data: list[bytes] = []
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
                    self.data.append(message.data)
                patience -= max(len(batch), 5)
                if patience <= 0 or subscription.place >= last:
                    return


@pytest.mark.parametrize("seed", range(100))
async def test_a_stream_over_many_connections_has_no_gap_and_no_repeat(seed: int) -> None:
    chance = random.Random(seed)
    page_size = chance.choice([1, 3, 200])
    journal = StreamJournal(chance)
    hubs = [
        hub_over(journal, buffer_size=chance.choice([0, 2, 10, 1_000]), replays_max=2, page_size=page_size)
        for _ in range(2)
    ]
    readers = [Reader(chance, "account", ANN), Reader(chance, "account", BOB), Reader(chance, "order", FIRST)]
    # Drawn before writing, so that the readers know their last message.
    plan = [chance.choice([(ANN, FIRST), (ANN, SECOND), (BOB, BOBS)]) for _ in range(80)]
    expected = [[number for number, planned in enumerate(plan, 1) if reader.wants(*planned)] for reader in readers]

    async def write() -> None:
        for account, order_id in plan:
            await journal.update(account, order_id)
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
        assert reader.data == [journal.snapshots[number] for number in reader.numbers]
    assert [hub.subscribers for hub in hubs] == [0, 0]
