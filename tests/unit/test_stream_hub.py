"""Who hears what, how many may listen, and when the hub lets go of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from switchyard.domain.errors import QueueFull
from switchyard.domain.events import SYSTEM_ACCOUNT, CutFact, encode, event, report_fact
from switchyard.domain.orders import snapshot
from switchyard.flow.readers import stream
from switchyard.flow.readers.stream import Message, StreamHub
from switchyard.flow.wake import Wake
from switchyard.telemetry.metrics import Metrics
from tests.support.stream_book import (
    ANN,
    BOB,
    DEADLINE_SECONDS,
    FIRST,
    REPORT,
    SECOND,
    Book,
    dispatch,
    hub_over,
    nothing_more,
    order_of,
    take,
)


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
