"""Both clients against a real gateway, through a proxy that injects network failures."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest
from aiohttp import web

from switchyard.client import (
    ApiError,
    AsyncClient,
    ClientError,
    NotReachable,
    OrderUpdate,
    RecordedEvent,
    Retry,
    StreamEvent,
    StreamReady,
    UnreadableResponse,
    pages,
)
from switchyard.domain.errors import InvalidKey
from tests.support.faulty_proxy import FaultyProxy, faulty_proxy
from tests.support.gateway import RunningGateway
from tests.support.threaded_client import make_client

# Short delays: the tests need the retries, not the pauses.
QUICK = Retry(first_seconds=0.001, seconds_max=0.01)
# Generous: only a failing test reaches it.
DEADLINE_SECONDS = 30


@pytest.fixture
async def proxy(embedded: RunningGateway) -> AsyncIterator[FaultyProxy]:
    async with faulty_proxy(embedded.url) as proxy:
        yield proxy


@pytest.fixture(params=["async", "sync"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client(kind: str, embedded: RunningGateway, proxy: FaultyProxy) -> AsyncIterator[AsyncClient]:
    async with make_client(kind, proxy.url, embedded.token("demo"), retry=QUICK) as client:
        yield client


async def until_filled(events: AsyncGenerator[StreamEvent, None]) -> list[OrderUpdate]:
    """The updates up to the one that shows the order filled."""
    updates = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for event in events:
            if isinstance(event, OrderUpdate):
                updates.append(event)
                if event.order.status == "FILLED":
                    return updates
    raise AssertionError("the stream ended before the order was filled")


async def test_an_order_is_placed_and_read_back_exactly(client: AsyncClient) -> None:
    placed = await client.place(
        "EURUSD",
        "BUY",
        Decimal("1000"),
        limit_price=Decimal("0.10001"),
        time_in_force="GTC",
        client_order_id="mine",
        strategy="carry",
        tags=["hedge", "night"],
    )
    order = await client.order(placed.order_id)
    assert placed.status == "ACCEPTED"
    assert not placed.replayed
    assert (order.type, order.price, order.qty) == ("LIMIT", Decimal("0.10001"), Decimal(1000))
    assert (order.client_order_id, order.strategy, order.tags) == ("mine", "carry", ("hedge", "night"))


async def test_an_order_without_a_limit_is_a_market_order(client: AsyncClient) -> None:
    placed = await client.place("USDJPY", "SELL", 2000)
    assert (await client.order(placed.order_id)).type == "MARKET"


async def test_a_request_with_a_lost_response_is_retried_under_the_same_key(
    client: AsyncClient, proxy: FaultyProxy
) -> None:
    proxy.lose_answer(times=2)
    placed = await client.place("USDJPY", "BUY", 1000)
    keys = proxy.headers("Idempotency-Key")
    assert len(keys) == 3
    assert set(keys) == {placed.idempotency_key}
    assert placed.replayed
    assert [order.order_id async for order in client.orders()] == [placed.order_id]


async def test_a_503_is_retried_under_the_same_key(client: AsyncClient, proxy: FaultyProxy) -> None:
    proxy.be_unavailable()
    placed = await client.place("USDJPY", "BUY", 1000)
    assert proxy.headers("Idempotency-Key") == [placed.idempotency_key] * 2


async def test_two_orders_have_two_keys(client: AsyncClient) -> None:
    first, second = await client.place("USDJPY", "BUY", 1000), await client.place("USDJPY", "BUY", 1000)
    assert first.idempotency_key != second.idempotency_key
    assert first.order_id != second.order_id


async def test_after_the_last_attempt_the_error_carries_the_key_for_a_safe_retry(
    client: AsyncClient, proxy: FaultyProxy
) -> None:
    proxy.lose_answer(times=QUICK.attempts_max)
    with pytest.raises(NotReachable) as failure:
        await client.place("USDJPY", "BUY", 1000)
    assert failure.value.in_doubt
    assert len(proxy.headers("Idempotency-Key")) == QUICK.attempts_max
    placed = await client.place("USDJPY", "BUY", 1000, idempotency_key=failure.value.idempotency_key)
    assert placed.replayed
    assert len([order async for order in client.orders()]) == 1


async def test_an_order_that_was_never_sent_is_not_in_doubt(kind: str, unused_url: str) -> None:
    async with make_client(kind, unused_url, "token", retry=QUICK) as client:
        with pytest.raises(NotReachable, match="Connection refused") as failure:
            await client.place("USDJPY", "BUY", 1000)
    assert not failure.value.in_doubt
    assert failure.value.idempotency_key is None


async def test_https_against_a_plain_port_says_so_and_is_not_in_doubt(kind: str, embedded: RunningGateway) -> None:
    url = embedded.url.replace("http://", "https://")
    async with make_client(kind, url, "token", retry=QUICK) as client:
        with pytest.raises(NotReachable, match=r"no TLS connection to .*: use http://") as failure:
            await client.place("USDJPY", "BUY", 1000)
    assert not failure.value.in_doubt


async def test_a_rejection_is_final_and_names_the_field(client: AsyncClient, proxy: FaultyProxy) -> None:
    with pytest.raises(ApiError) as failure:
        await client.place("USDJPY", "BUY", 10**15)
    assert (failure.value.status, failure.value.reason, failure.value.field) == (422, "VALIDATION_ERROR", "qty")
    assert failure.value.idempotency_key is None
    assert len(proxy.headers("Idempotency-Key")) == 1


async def test_a_key_that_is_invalid_in_a_header_is_rejected_before_sending(
    client: AsyncClient, proxy: FaultyProxy
) -> None:
    with pytest.raises(InvalidKey):
        await client.place("USDJPY", "BUY", 1000, idempotency_key="two\r\nlines")
    assert proxy.headers("Idempotency-Key") == []


async def test_another_order_under_the_same_key_is_a_conflict(client: AsyncClient) -> None:
    await client.place("USDJPY", "BUY", 1000, idempotency_key="k-1")
    with pytest.raises(ApiError) as failure:
        await client.place("USDJPY", "BUY", 2000, idempotency_key="k-1")
    assert (failure.value.status, failure.value.reason) == (409, "IDEMPOTENCY_CONFLICT")


async def test_orders_come_newest_first_over_all_pages(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_ORDERS_MAX", 2)
    placed = [(await client.place("USDJPY", "BUY", number * 1000)).order_id for number in range(1, 6)]
    assert [order.order_id async for order in client.orders()] == placed[::-1]
    assert [order.order_id async for order in client.orders(limit=3)] == placed[:1:-1]


async def test_orders_can_be_filtered_by_status_and_symbol(client: AsyncClient, embedded: RunningGateway) -> None:
    done = await client.place("USDJPY", "BUY", 1000)
    await client.place("EURUSD", "BUY", 1000)
    await embedded.until_status(done.order_id, "FILLED")
    filtered = [order.order_id async for order in client.orders(statuses=["FILLED", "EXPIRED"], symbol="USDJPY")]
    assert filtered == [done.order_id]


async def test_an_open_order_is_cancelled(client: AsyncClient, embedded: RunningGateway) -> None:
    placed = await client.place("USDJPY", "BUY", 1000, limit_price=Decimal("0.001"))
    assert (await client.cancel(placed.order_id)).status == "CANCEL_REQUESTED"
    await embedded.until_status(placed.order_id, "CANCELED")


async def test_an_order_that_has_ended_cannot_be_cancelled(client: AsyncClient, embedded: RunningGateway) -> None:
    placed = await client.place("USDJPY", "BUY", 1000)
    await embedded.until_status(placed.order_id, "FILLED")
    with pytest.raises(ApiError) as failure:
        await client.cancel(placed.order_id)
    assert (failure.value.status, failure.value.reason) == (409, "ORDER_FINAL")


async def test_a_missing_order_and_an_order_of_another_account_give_the_same_error(
    kind: str, client: AsyncClient, embedded: RunningGateway
) -> None:
    placed = await client.place("USDJPY", "BUY", 1000)
    async with make_client(kind, embedded.url, embedded.token("other")) as other_client:
        for order_id in (placed.order_id, "ord_missing", "../orders", "a b?c#d"):
            with pytest.raises(ApiError) as failure:
                await other_client.order(order_id)
            assert (failure.value.status, failure.value.reason) == (404, "NOT_FOUND")


async def test_a_bad_token_is_rejected_at_once(kind: str, embedded: RunningGateway) -> None:
    async with make_client(kind, embedded.url, "nonsense") as client:
        with pytest.raises(ApiError) as failure:
            await client.order("ord_any")
    assert failure.value.status == 401


async def test_events_of_an_order_and_of_the_account_come_oldest_first(
    client: AsyncClient, embedded: RunningGateway
) -> None:
    first, second = await client.place("USDJPY", "BUY", 1000), await client.place("USDJPY", "BUY", 1000)
    await embedded.until_status(second.order_id, "FILLED")
    of_order = [event async for event in client.events(order_id=first.order_id)]
    of_account = [event async for event in client.events(account_id="demo")]
    assert {event.order_id for event in of_order} == {first.order_id}
    assert {event.order_id for event in of_account} == {first.order_id, second.order_id}
    numbers = [event.seq for event in of_account]
    assert numbers == sorted(numbers)


async def test_events_are_read_over_all_pages_in_both_directions(
    client: AsyncClient, embedded: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = await client.place("USDJPY", "BUY", 1000)
    await embedded.until_status(placed.order_id, "FILLED")
    everything = [event async for event in client.events(order_id=placed.order_id)]
    assert len(everything) > 3
    monkeypatch.setattr(pages, "PAGE_EVENTS_MAX", 2)

    async def read(**options: Any) -> list[RecordedEvent]:
        return [event async for event in client.events(order_id=placed.order_id, **options)]

    assert await read() == everything
    assert await read(newest_first=True) == everything[::-1]
    assert await read(newest_first=True, since=everything[1].at) == [
        event for event in everything[::-1] if event.at >= everything[1].at
    ]
    assert await read(limit=3) == everything[:3]
    assert await read(newest_first=True, limit=3) == everything[:-4:-1]
    assert await read(after_seq=everything[2].seq) == everything[3:]
    for options in ({"account_id": "demo"}, {"after_seq": 1, "newest_first": True}):
        with pytest.raises(ValueError, match="pass"):
            await read(**options)


async def test_a_broken_stream_resumes_after_the_last_message_without_gap_or_repeat(
    client: AsyncClient, proxy: FaultyProxy
) -> None:
    losses: list[ClientError] = []
    proxy.cut_at(b'"status":"WORKING"')
    async with aclosing(client.stream(on_disconnect=losses.append)) as messages:
        assert isinstance(await anext(messages), StreamReady)
        placed = await client.place("USDJPY", "BUY", 1000)
        updates = await until_filled(messages)
    orders = [update.order for update in updates]
    assert {order.order_id for order in orders} == {placed.order_id}
    versions = [order.version for order in orders]
    assert versions == sorted(set(versions))
    assert versions[0] == 1
    resumed = [value for value in proxy.headers("Last-Event-ID") if value is not None]
    assert len(losses) == 1
    assert len(resumed) == 1
    assert int(resumed[0]) in [int(update.id or 0) for update in updates]


async def test_a_new_stream_can_resume_after_an_earlier_one(client: AsyncClient) -> None:
    async with aclosing(client.stream()) as messages:
        await anext(messages)
        await client.place("USDJPY", "BUY", 1000)
        seen = await until_filled(messages)
    async with aclosing(client.stream(last_event_id=seen[0].id)) as messages:
        assert await until_filled(messages) == seen[1:]


async def test_the_stream_of_an_order_starts_with_a_snapshot(client: AsyncClient) -> None:
    placed = await client.place("USDJPY", "BUY", 1000)
    async with aclosing(client.stream(placed.order_id)) as messages, asyncio.timeout(DEADLINE_SECONDS):
        events = [await anext(messages), await anext(messages)]
    assert [event.message.event for event in events] == ["ready", "order_snapshot"]
    assert isinstance(events[1], OrderUpdate)
    assert events[1].order.order_id == placed.order_id


async def test_a_stream_survives_a_temporary_outage_of_the_gateway(
    client: AsyncClient, proxy: FaultyProxy, embedded: RunningGateway
) -> None:
    order_id = (await embedded.place()).json["orderId"]
    proxy.cut_at(b"ready\n")
    proxy.be_unavailable(times=QUICK.attempts_max - 2)
    proxy.cut_at(b'"status":"ACCEPTED"')
    proxy.be_unavailable(times=QUICK.attempts_max + 2)
    async with aclosing(client.stream(order_id, last_event_id="0")) as messages:
        updates = await until_filled(messages)
    assert len(updates) == len({update.id for update in updates})


async def test_the_stream_of_a_missing_order_is_rejected_at_once(client: AsyncClient, proxy: FaultyProxy) -> None:
    with pytest.raises(ApiError) as failure:
        await anext(client.stream("ord_missing"))
    assert failure.value.status == 404
    assert len(proxy.headers("Accept")) == 1


async def test_a_stream_that_never_connects_fails_after_the_last_attempt(kind: str, unused_url: str) -> None:
    async with make_client(kind, unused_url, "token", retry=QUICK) as client:
        with pytest.raises(NotReachable):
            await anext(client.stream())


async def test_a_response_of_another_service_is_unreadable(kind: str) -> None:
    async with web_page() as url, make_client(kind, url, "token", retry=QUICK) as client:
        with pytest.raises(UnreadableResponse) as failure:
            await client.place("USDJPY", "BUY", 1000)
        assert failure.value.idempotency_key is not None
        with pytest.raises(UnreadableResponse):
            await anext(client.stream())


@pytest.fixture
def unused_url(unused_tcp_port: int) -> str:
    return f"http://127.0.0.1:{unused_tcp_port}"


@asynccontextmanager
async def web_page() -> AsyncGenerator[str, None]:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<h1>It works!</h1>", content_type="text/html")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", page)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_exposure_shows_what_open_orders_reserve(client: AsyncClient) -> None:
    await client.place("USDJPY", "BUY", 1000, limit_price="100.5", time_in_force="GTC")

    shown = await client.exposure()

    assert (shown.account_id, shown.open_orders, shown.open_orders_max) == ("demo", 1, None)
    [money] = shown.currencies
    assert (money.currency, money.open_notional) == ("JPY", Decimal(100_500))
    assert (await client.exposure("EURUSD")).symbols == ()
