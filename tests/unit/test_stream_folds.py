"""Messages show whole orders and reports, although events carry only what changed: the same bytes at every gateway."""

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal

import pytest

from switchyard.domain.journal.events import encode
from switchyard.domain.orders.order import snapshot
from switchyard.domain.orders.reports import OrderReport
from switchyard.flow.readers import folds
from switchyard.flow.readers.folds import Message, OrderFold
from tests.support.polling import until
from tests.support.stream_journal import ANN, AT, BOB, FIRST, SECOND, StreamJournal, dispatch, hub_over, take


async def story(journal: StreamJournal, fills: int = 2) -> list[Message]:
    """Accept an order, try to send it and fill parts of it; returns the messages that streams have to show."""
    messages: list[Message] = []
    steps: list[Callable[[], Awaitable[int]]] = [journal.update] * 2 + [journal.report] * fills
    for happen in steps:
        before = journal.orders.get(FIRST)
        number = await happen()
        order = journal.orders[FIRST]
        if before is not None and order.filled_qty > before.filled_qty:
            report = OrderReport(
                exec_id=f"sim-{number - 1}",
                venue=order.venue,
                venue_client_order_id=order.venue_client_order_id,
                venue_order_id="v",
                status="PARTIALLY_FILLED",
                last_qty=Decimal("0.1"),
                last_price=Decimal(63990),
                filled_qty_total=order.filled_qty,
                reason=None,
                at=AT,
                order_id=FIRST,
                symbol="BTC",
                side="BUY",
            )
            messages.append(Message(number, "execution_report", encode(report)))
            number += 1
        messages.append(Message(number, "order_update", encode(snapshot(order))))
    return messages


async def test_a_live_stream_shows_whole_orders_and_reports() -> None:
    journal = StreamJournal()
    hub = hub_over(journal)
    async with hub.subscribe("account", ANN) as account, hub.subscribe("order", FIRST) as order:
        messages = await story(journal)
        await dispatch(hub)
        assert await take(account, len(messages)) == messages
        assert await take(order, len(messages)) == messages
    assert journal.replays == 0, "the hub has read the order from its beginning"


@pytest.mark.parametrize("page_size", [1, 3, 200])
@pytest.mark.parametrize("seen", range(6))
async def test_a_stream_shows_the_same_wherever_it_begins(seen: int, page_size: int) -> None:
    journal = StreamJournal()
    followed, unfollowed = (hub_over(journal, page_size=page_size) for _ in range(2))
    async with followed.subscribe("account", ANN), unfollowed.subscribe("account", BOB):
        messages = await story(journal)
        last = messages[seen].id
        for hub in (followed, unfollowed):
            await dispatch(hub)  # the ring of the second one has events without messages
        for hub in (followed, unfollowed, hub_over(journal, page_size=page_size)):
            async with hub.subscribe("order", FIRST, last) as order, hub.subscribe("account", ANN, last) as account:
                later = messages[seen + 1 :]
                assert await take(order, len(later)) == later
                assert await take(account, len(later)) == later


async def test_a_stream_that_begins_between_a_report_and_its_update_counts_the_fill() -> None:
    journal = StreamJournal()
    messages = await story(journal)
    hub = hub_over(journal, page_size=1)
    async with hub.subscribe("account", BOB):
        hub._position = messages[2].id  # the report was read while nobody followed the order
        async with hub.subscribe("account", ANN) as subscription:
            await dispatch(hub)
            assert await take(subscription, 3) == messages[3:]


async def test_an_event_that_nobody_follows_is_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OrderFold, "message", None)
    journal = StreamJournal()
    hub = hub_over(journal)
    async with hub.subscribe("account", BOB), hub.subscribe("order", SECOND):
        await story(journal)
        await dispatch(hub)
    assert journal.replays == 0


async def test_an_order_that_was_not_followed_for_a_while_is_loaded_again() -> None:
    journal = StreamJournal()
    hub = hub_over(journal)
    async with hub.subscribe("account", BOB):
        async with hub.subscribe("account", ANN):
            await journal.update()
            await dispatch(hub)
        await journal.update()
        await dispatch(hub)
        async with hub.subscribe("account", ANN) as subscription:
            number = await journal.update()
            await dispatch(hub)
            expected = Message(number, "order_update", encode(snapshot(journal.orders[FIRST])))
            assert await take(subscription, 1) == [expected]
    assert journal.replays == 1


async def test_an_urgent_subscriber_is_woken_without_data_and_without_a_query() -> None:
    journal = StreamJournal()
    await journal.update()
    hub = hub_over(journal)
    async with hub.subscribe("order", FIRST, urgent=True) as request:
        number = await journal.update()
        await dispatch(hub)
        assert await take(request, 1) == [Message(number, "order_update", b"")]
        assert journal.replays == 0
        async with hub.subscribe("order", FIRST) as stream:
            number = await journal.update()
            await dispatch(hub)
            expected = Message(number, "order_update", encode(snapshot(journal.orders[FIRST])))
            assert await take(stream, 1) == [expected]


async def test_an_order_with_many_events_is_read_once_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folds, "PAGE_MAX", 4)
    journal = StreamJournal()
    messages = await story(journal, fills=14)
    hub = hub_over(journal)
    async with hub.subscribe("order", FIRST) as live:
        number = await journal.report()
        await dispatch(hub)
        loads = journal.replays
        assert loads == len(messages) // 4 + 1
        await journal.report()
        await dispatch(hub)
        assert journal.replays == loads
        assert (await take(live, 4))[-1].data == encode(snapshot(journal.orders[FIRST]))
        async with hub_over(journal).subscribe("order", FIRST, number - 3) as resumed:
            assert (await take(resumed, 6))[0] == messages[-2]


@pytest.mark.parametrize("orders_max", [1, 2])
async def test_the_number_of_orders_in_memory_is_bounded(orders_max: int) -> None:
    journal = StreamJournal()
    hub = hub_over(journal, orders_max=orders_max)
    async with hub.subscribe("account", ANN) as subscription:
        for _ in range(4):
            for order_id in (FIRST, SECOND):
                number = await journal.update(order_id=order_id)
                await dispatch(hub)
                expected = Message(number, "order_update", encode(snapshot(journal.orders[order_id])))
                assert await take(subscription, 1) == [expected]
        assert len(hub._folds._folds) == orders_max
    assert (journal.replays == 0) == (orders_max == 2)


async def test_an_order_whose_beginning_is_archived_is_shown_from_its_row() -> None:
    journal = StreamJournal()
    messages = await story(journal)
    journal.oldest_seq = 3
    async with hub_over(journal).subscribe("order", FIRST, 3) as resumed:
        shown = await take(resumed, 3)
    assert [message.id for message in shown] == [message.id for message in messages[3:]]
    assert shown[-1] == messages[-1]


def update_of(journal: StreamJournal, number: int) -> Message:
    return Message(number, "order_update", journal.snapshots[number])


async def test_a_reader_that_joins_while_another_order_is_loaded_misses_nothing() -> None:
    journal = StreamJournal()
    await journal.update(ANN)
    await journal.update(BOB)
    hub = hub_over(journal)
    async with hub.subscribe("account", ANN) as first:
        numbers = await journal.update(ANN), await journal.update(BOB)
        journal.replay_arrives.clear()
        reading = asyncio.create_task(hub.run_once())
        await until(lambda: journal.replays > 0)
        async with hub.subscribe("account", BOB) as second:
            journal.replay_arrives.set()
            assert await reading == 2
            assert await take(first, 1) == [update_of(journal, numbers[0])]
            assert await take(second, 1) == [update_of(journal, numbers[1])]


async def test_an_order_that_was_loaded_for_a_reader_who_left_is_not_kept() -> None:
    journal = StreamJournal()
    await journal.update()
    hub = hub_over(journal)
    async with hub.subscribe("account", ANN):
        await journal.update()
        journal.replay_arrives.clear()
        reading = asyncio.create_task(hub.run_once())
        await until(lambda: journal.replays > 0)
    await journal.update()
    async with hub.subscribe("account", ANN) as subscription:
        journal.replay_arrives.set()
        assert await reading == 0
        number = await journal.update()
        await dispatch(hub)
        assert await take(subscription, 1) == [update_of(journal, number)]
