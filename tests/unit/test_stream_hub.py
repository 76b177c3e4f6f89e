"""Which subscribers get which messages, how many may subscribe, and when subscriptions end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from switchyard.domain.errors import QueueFull
from switchyard.domain.journal.events import SYSTEM_ACCOUNT, event, report_fact
from switchyard.domain.journal.facts import CutFact
from switchyard.flow.clock import Wake
from switchyard.flow.readers import stream
from switchyard.flow.readers.stream import StreamHub
from switchyard.telemetry.metrics import Metrics
from tests.support.stream_journal import (
    ANN,
    BOB,
    DEADLINE_SECONDS,
    FIRST,
    REPORT,
    SECOND,
    StreamJournal,
    dispatch,
    hub_over,
    nothing_more,
    take,
)


async def test_an_account_stream_has_all_its_orders_and_an_order_stream_only_that_order() -> None:
    journal = StreamJournal()
    hub = hub_over(journal)
    async with hub.subscribe("account", ANN) as account, hub.subscribe("order", FIRST) as order:
        first, second, third = await journal.update(), await journal.update(order_id=SECOND), await journal.report()
        await dispatch(hub)
        assert [message.id for message in await take(account, 4)] == [first, second, third, third + 1]
        assert [message.id for message in await take(order, 3)] == [first, third, third + 1]


async def test_another_account_gets_no_messages() -> None:
    journal = StreamJournal()
    hub = hub_over(journal)
    async with hub.subscribe("account", BOB) as other:
        await journal.update(ANN)
        await journal.report()
        await dispatch(hub)
        assert await nothing_more(other)


async def test_another_account_gets_no_past_messages_either() -> None:
    journal = StreamJournal()
    await journal.update(ANN)
    async with hub_over(journal).subscribe("account", BOB, 0) as other:
        assert await nothing_more(other)


async def test_a_message_fits_on_one_line_even_if_a_label_has_a_line_break() -> None:
    journal = StreamJournal()
    hub = hub_over(journal)
    async with hub.subscribe("account", ANN) as subscription:
        await journal.update()
        await dispatch(hub)
        [message] = await take(subscription, 1)
        assert msgspec.json.decode(message.data)["clientOrderId"] == "two\nlines"
        assert len(message.data.splitlines()) == 1


async def test_an_event_without_an_order_makes_no_message() -> None:
    journal = StreamJournal()
    hub = hub_over(journal)
    async with hub.subscribe("account", SYSTEM_ACCOUNT, 0) as subscription:
        cut = CutFact(path="audit.log", expected_seq=9, found_seq=3)
        await journal.add(event("AuditFileCut", SYSTEM_ACCOUNT, None, cut))
        await journal.add(event("ReportUnmatched", SYSTEM_ACCOUNT, None, report_fact(REPORT, None)))
        await dispatch(hub)
        assert await nothing_more(subscription)


async def test_a_slow_reader_is_ended_and_counted_while_others_continue() -> None:
    journal, metrics = StreamJournal(), Metrics()
    hub = hub_over(journal, queue_capacity=3, metrics=metrics)
    async with hub.subscribe("account", ANN) as slow, hub.subscribe("account", ANN) as swift:
        numbers: list[int] = []
        for _ in range(5):
            numbers.append(await journal.update())
            await dispatch(hub)
            assert [message.id for message in await take(swift, 1)] == numbers[-1:]
        assert await slow.ended == "slow"
        assert [batch async for batch in slow.batches(DEADLINE_SECONDS)] == []
        assert not swift.ended.done()
        assert metrics.registry.get_sample_value("sse_slow_readers_total") == 1
    async with hub.subscribe("account", ANN, slow.place) as resumed:
        assert [message.id for message in await take(resumed, 5)] == numbers


async def test_the_journal_is_not_read_without_subscribers() -> None:
    journal = StreamJournal()
    hub = hub_over(journal)
    await journal.update()
    await dispatch(hub)
    async with hub.subscribe("account", ANN):
        await dispatch(hub)
    reads = journal.reads
    await journal.update()
    await dispatch(hub)
    assert journal.reads == reads
    async with hub.subscribe("account", ANN) as subscription:
        assert subscription.place == 2, "the hub skips events that happened without subscribers"


async def test_a_read_that_ends_after_all_subscribers_left_does_not_move_the_hub_back() -> None:
    journal = StreamJournal()
    hub = hub_over(journal)
    async with hub.subscribe("account", ANN):
        await journal.update()
        journal.page_arrives.clear()
        reading = asyncio.create_task(hub.run_once())
        await journal.page_found.wait()
    newest = await journal.update()
    async with hub.subscribe("account", ANN):
        journal.page_arrives.set()
        assert await reading == 0
        async with hub.subscribe("account", ANN) as another:
            assert another.place == newest


async def test_a_subscriber_is_removed_when_it_fails() -> None:
    hub, metrics = hub_over(StreamJournal(), metrics=(metrics := Metrics())), metrics
    with pytest.raises(ValueError, match="gone"):
        async with hub.subscribe("account", ANN):
            assert metrics.registry.get_sample_value("sse_subscribers") == 1
            raise ValueError("gone")
    assert hub.subscribers == 0
    assert metrics.registry.get_sample_value("sse_subscribers") == 0


async def test_the_number_of_subscribers_is_bounded() -> None:
    hub = hub_over(StreamJournal(), subscribers_max=1)
    async with hub.subscribe("account", ANN):
        with pytest.raises(QueueFull):
            async with hub.subscribe("account", ANN):
                pass
    async with hub.subscribe("account", ANN):
        assert hub.subscribers == 1


async def test_the_number_of_concurrent_replays_is_bounded() -> None:
    journal = StreamJournal()
    for _ in range(10):
        await journal.update()
    hub = hub_over(journal, replays_max=2)

    async def replay() -> int:
        async with hub.subscribe("account", ANN, 0) as subscription:
            return len(await take(subscription, 10))

    assert await asyncio.gather(*(replay() for _ in range(20))) == [10] * 20
    assert journal.replays_at_once_max == 2


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


async def test_a_running_hub_delivers_messages_and_ends_its_streams_when_it_closes() -> None:
    journal, wake = StreamJournal(), Wake()
    hub = hub_over(journal)
    async with running(hub, wake), hub.subscribe("account", ANN) as subscription:
        for _ in range(3):
            number = await journal.update()
            wake.notify()
            assert [message.id for message in await take(subscription, 1)] == [number]
        hub.close()
        assert await subscription.ended == "closing"
        with pytest.raises(QueueFull):
            async with hub.subscribe("account", ANN):
                pass


async def test_a_running_hub_continues_after_the_journal_was_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "RETRY_SECONDS", 0)
    journal, wake = StreamJournal(), Wake()
    hub = hub_over(journal)
    journal.failures = 3
    async with running(hub, wake), hub.subscribe("account", ANN) as subscription:
        number = await journal.update()
        assert [message.id for message in await take(subscription, 1)] == [number]


async def test_streams_end_when_the_hubs_task_is_cancelled() -> None:
    journal = StreamJournal()
    hub = hub_over(journal)
    task = asyncio.create_task(hub.run(Wake()))
    async with hub.subscribe("account", ANN) as subscription:
        await journal.update()
        await take(subscription, 1)
        task.cancel()
        assert await subscription.ended == "closing"
