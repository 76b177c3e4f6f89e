import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

import msgspec
import pytest

from switchyard.adapters.memory.journal import MemoryJournal
from switchyard.domain import decisions
from switchyard.domain.changes import Change
from switchyard.domain.errors import JournalUnavailable, QueueFull
from switchyard.domain.events import SYSTEM_ACCOUNT, CutFact, Event, JournalEvent, OrderFact, encode, event, report_fact
from switchyard.domain.ids import AccountId, OrderId, VenueClientId, VenueName
from switchyard.domain.orders import Order, OrderRequest, snapshot
from switchyard.domain.reports import ExecutionReport
from switchyard.flow import stream
from switchyard.flow.metrics import Metrics
from switchyard.flow.stream import Message, Scope, StreamHub, Subscription
from switchyard.flow.wake import Wake
from switchyard.ports.journal import Head
from switchyard.ports.queries import Queries

ANN, BOB = AccountId("ann"), AccountId("bob")
FIRST, SECOND = OrderId("ord_1"), OrderId("ord_2")
AT = datetime(2025, 3, 4, 9, 30, tzinfo=UTC)
# Far beyond what any machine needs: a test that waits this long has failed.
DEADLINE_SECONDS = 60.0
REPORT = ExecutionReport(
    exec_id="sim-1",
    venue=VenueName("sim"),
    venue_client_id=VenueClientId("c"),
    venue_order_id="v",
    status="PARTIALLY_FILLED",
    last_qty=Decimal("0.5"),
    last_price=Decimal(63990),
    filled_qty_total=Decimal("0.5"),
    at=AT,
)


def order_of(account: AccountId = ANN, order_id: OrderId = FIRST) -> Order:
    [order] = decisions.accept(
        OrderRequest(symbol="BTC", side="BUY", type="MARKET", qty=Decimal("1.5"), time_in_force="IOC"),
        account=account,
        order_id=order_id,
        venue=VenueName("sim"),
        venue_client_id=VenueClientId("c"),
        ledger=None,
        quote=None,
        now=AT,
    ).orders
    # No label may break the framing, however it came in.
    return msgspec.structs.replace(order, client_order_id="two\nlines")


class Book(MemoryJournal):
    """A journal that counts what the hub reads; with `chance`, each read takes an unforeseeable time."""

    def __init__(self, chance: random.Random | None = None) -> None:
        super().__init__()
        self.reads = 0
        self.replays = 0
        self.replays_at_once = 0
        self.replays_at_once_max = 0
        self.oldest_seq = 1
        self.failures = 0
        self.page_found = asyncio.Event()
        self.page_arrives = asyncio.Event()
        self.page_arrives.set()
        self._chance = chance

    async def add(self, fact: Event) -> int:
        await self.append(0, f"group {len(self.all)}", [Change(events=(fact,))], AT)
        return len(self.all)

    async def update(self, account: AccountId = ANN, order_id: OrderId = FIRST) -> int:
        data = OrderFact(order=snapshot(order_of(account, order_id)))
        return await self.add(event("OrderUpdated", account, order_id, data))

    async def report(self, account: AccountId = ANN, order_id: OrderId = FIRST) -> int:
        return await self.add(event("ExecutionReport", account, order_id, report_fact(REPORT, order_of())))

    @property
    def all(self) -> list[JournalEvent]:
        return self.events.get(0, [])

    async def head(self, shard: int) -> Head:
        await self._pause()
        head = await super().head(shard)
        await self._pause()
        return head

    async def read(self, shard: int, after_seq: int, limit: int) -> list[JournalEvent]:
        self.reads += 1
        await self._pause()
        if self.failures:
            self.failures -= 1
            raise JournalUnavailable("away")
        page = await super().read(shard, max(after_seq, self.oldest_seq - 1), limit)
        self.page_found.set()
        await self.page_arrives.wait()
        await self._pause()
        return page

    async def events_after(
        self, seq: int, *, account_id: AccountId | None = None, order_id: OrderId | None = None, limit: int
    ) -> list[JournalEvent]:
        self.replays += 1
        self.replays_at_once += 1
        self.replays_at_once_max = max(self.replays_at_once_max, self.replays_at_once)
        await self._pause()
        page = [
            found
            for found in self.all[max(seq, self.oldest_seq - 1) :]
            if (found.order_id == order_id if account_id is None else found.account_id == account_id)
        ]
        await self._pause()
        self.replays_at_once -= 1
        return page[:limit]

    async def _pause(self) -> None:
        for _ in range(self._chance.randrange(4) if self._chance else 1):
            await asyncio.sleep(0)


def hub_over(book: Book, **options: Any) -> StreamHub:
    return StreamHub(book, cast(Queries, book), **options)


async def dispatch(hub: StreamHub) -> None:
    while await hub.run_once():
        pass


async def take(subscription: Subscription, count: int) -> list[Message]:
    """The next messages, however they are batched; more than `count` when the last batch has more."""
    taken: list[Message] = []
    async with asyncio.timeout(DEADLINE_SECONDS), aclosing(subscription.batches(DEADLINE_SECONDS)) as batches:
        while len(taken) < count:
            taken += await anext(batches)
    return taken


async def nothing_more(subscription: Subscription) -> bool:
    """Whether all that was dispatched has been taken."""
    async with aclosing(subscription.batches(0)) as batches:
        return await anext(batches) == []


async def test_an_account_hears_of_all_its_orders_and_an_order_only_of_itself() -> None:
    book = Book()
    hub = hub_over(book)
    async with hub.subscribe("account", ANN) as account, hub.subscribe("order", FIRST) as order:
        first, second, third = await book.update(), await book.update(order_id=SECOND), await book.report()
        await dispatch(hub)
        assert [message.id for message in await take(account, 3)] == [first, second, third]
        assert [message.id for message in await take(order, 2)] == [first, third]


async def test_a_foreign_account_hears_nothing() -> None:
    book = Book()
    hub = hub_over(book)
    async with hub.subscribe("account", BOB) as foreign:
        await book.update(ANN)
        await book.report(ANN)
        await dispatch(hub)
        assert await nothing_more(foreign)


async def test_a_foreign_account_hears_nothing_of_the_past_either() -> None:
    book = Book()
    await book.update(ANN)
    async with hub_over(book).subscribe("account", BOB, 0) as foreign:
        assert await nothing_more(foreign)


async def test_a_message_is_the_events_own_bytes() -> None:
    book = Book()
    hub = hub_over(book)
    async with hub.subscribe("account", ANN) as subscription:
        update, report = await book.update(), await book.report()
        await dispatch(hub)
        assert await take(subscription, 2) == [
            Message(update, "order_update", encode(snapshot(order_of()))),
            Message(report, "execution_report", encode(report_fact(REPORT, order_of()))),
        ]


async def test_a_message_fits_on_one_line_whatever_its_labels_contain() -> None:
    book = Book()
    hub = hub_over(book)
    async with hub.subscribe("account", ANN) as subscription:
        await book.update()
        await dispatch(hub)
        [message] = await take(subscription, 1)
        assert msgspec.json.decode(message.data)["clientOrderId"] == "two\nlines"
        assert len(message.data.splitlines()) == 1


async def test_an_event_of_no_order_makes_no_message() -> None:
    book = Book()
    hub = hub_over(book)
    async with hub.subscribe("account", SYSTEM_ACCOUNT, 0) as subscription:
        cut = CutFact(path="audit.log", expected_seq=9, found_seq=3)
        await book.add(event("AuditFileCut", SYSTEM_ACCOUNT, None, cut))
        await book.add(event("ReportUnmatched", SYSTEM_ACCOUNT, None, report_fact(REPORT, None)))
        await dispatch(hub)
        assert await nothing_more(subscription)


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


async def test_a_slow_reader_is_cut_off_and_counted_while_others_go_on() -> None:
    book, metrics = Book(), Metrics()
    hub = hub_over(book, queue_capacity=3, metrics=metrics)
    async with hub.subscribe("account", ANN) as slow, hub.subscribe("account", ANN) as swift:
        numbers: list[int] = []
        for _ in range(5):
            numbers.append(await book.update())
            await dispatch(hub)
            assert [message.id for message in await take(swift, 1)] == numbers[-1:]
        assert await slow.ended == "slow"
        assert [batch async for batch in slow.batches(DEADLINE_SECONDS)] == []
        assert not swift.ended.done()
        assert metrics.registry.get_sample_value("sse_slow_readers_total") == 1
    async with hub.subscribe("account", ANN, slow.place) as resumed:
        assert [message.id for message in await take(resumed, 5)] == numbers


async def test_nothing_is_read_while_nobody_listens() -> None:
    book = Book()
    hub = hub_over(book)
    await book.update()
    await dispatch(hub)
    async with hub.subscribe("account", ANN):
        await dispatch(hub)
    reads = book.reads
    await book.update()
    await dispatch(hub)
    assert book.reads == reads
    async with hub.subscribe("account", ANN) as subscription:
        assert subscription.place == 2, "the hub skips what happened while nobody listened"


async def test_a_page_that_was_asked_for_before_everybody_left_does_not_take_the_hub_back() -> None:
    book = Book()
    hub = hub_over(book)
    async with hub.subscribe("account", ANN):
        await book.update()
        book.page_arrives.clear()
        reading = asyncio.create_task(hub.run_once())
        await book.page_found.wait()
    newest = await book.update()
    async with hub.subscribe("account", ANN):
        book.page_arrives.set()
        assert await reading == 0
        async with hub.subscribe("account", ANN) as another:
            assert another.place == newest


async def test_a_reader_is_forgotten_however_it_leaves() -> None:
    hub, metrics = hub_over(Book(), metrics=(metrics := Metrics())), metrics
    with pytest.raises(ValueError, match="gone"):
        async with hub.subscribe("account", ANN):
            assert metrics.registry.get_sample_value("sse_subscribers") == 1
            raise ValueError("gone")
    assert hub.subscribers == 0
    assert metrics.registry.get_sample_value("sse_subscribers") == 0


async def test_there_is_an_end_to_how_many_may_listen() -> None:
    hub = hub_over(Book(), subscribers_max=1)
    async with hub.subscribe("account", ANN):
        with pytest.raises(QueueFull):
            async with hub.subscribe("account", ANN):
                pass
    async with hub.subscribe("account", ANN):
        assert hub.subscribers == 1


async def test_replays_at_once_are_bounded() -> None:
    book = Book()
    for _ in range(10):
        await book.update()
    hub = hub_over(book, replays_max=2)

    async def replay() -> int:
        async with hub.subscribe("account", ANN, 0) as subscription:
            return len(await take(subscription, 10))

    assert await asyncio.gather(*(replay() for _ in range(20))) == [10] * 20
    assert book.replays_at_once_max == 2


@asynccontextmanager
async def running(hub: StreamHub, wake: Wake) -> AsyncIterator[None]:
    task = asyncio.create_task(hub.run(wake))
    try:
        yield
    finally:
        hub.close()
        wake.notify()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await task


async def test_the_running_hub_brings_what_happens_and_ends_its_streams_when_it_closes() -> None:
    book, wake = Book(), Wake()
    hub = hub_over(book)
    async with running(hub, wake), hub.subscribe("account", ANN) as subscription:
        for _ in range(3):
            number = await book.update()
            wake.notify()
            assert [message.id for message in await take(subscription, 1)] == [number]
        hub.close()
        assert await subscription.ended == "closing"
        with pytest.raises(QueueFull):
            async with hub.subscribe("account", ANN):
                pass


async def test_the_running_hub_outlives_a_journal_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "RETRY_SECONDS", 0)
    book, wake = Book(), Wake()
    hub = hub_over(book)
    book.failures = 3
    async with running(hub, wake), hub.subscribe("account", ANN) as subscription:
        number = await book.update()
        assert [message.id for message in await take(subscription, 1)] == [number]


async def test_streams_end_when_nobody_feeds_them_any_more() -> None:
    book = Book()
    hub = hub_over(book)
    task = asyncio.create_task(hub.run(Wake()))
    async with hub.subscribe("account", ANN) as subscription:
        await book.update()
        await take(subscription, 1)
        task.cancel()
        assert await subscription.ended == "closing"


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
