"""What both clients share: exact amounts, `do_order` and its backoff, typed events."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.client import (
    ApiError,
    AsyncClient,
    Client,
    ExecutionReported,
    Message,
    NotReachable,
    OrderUpdate,
    ResyncRequired,
    Retry,
    RiskConstraints,
    ServerClosing,
    TokenExpired,
    UnknownEvent,
    UnreadableResponse,
)
from switchyard.client.events import stream_event
from switchyard.domain.errors import InvalidField
from switchyard.domain.ids import OrderId, VenueClientOrderId, VenueName
from switchyard.domain.journal.events import encode
from switchyard.domain.journal.facts import AcceptedFact, OrderFact, ReportFact
from switchyard.domain.orders.reports import OrderReport
from tests.support.faulty_proxy import FaultyProxy, faulty_proxy
from tests.support.gateway import RunningGateway
from tests.support.serving import serving
from tests.support.threaded_client import make_client

# Generous: only a failing test reaches it.
DEADLINE_SECONDS = 30


class Pauses:
    """Records the pauses that a client would make, and makes none."""

    def __init__(self, kind: str) -> None:
        self.seconds: list[float] = []
        self.sleep: Callable[[float], Any] = self._sleep_async if kind == "async" else self.seconds.append

    def _sleep_async(self, seconds: float) -> Awaitable[None]:
        self.seconds.append(seconds)
        return asyncio.sleep(0)


@pytest.fixture(params=["async", "sync"])
def pauses(request: pytest.FixtureRequest) -> Pauses:
    return Pauses(request.param)


@pytest.fixture
async def proxy(embedded: RunningGateway) -> AsyncIterator[FaultyProxy]:
    async with faulty_proxy(embedded.url) as proxy:
        yield proxy


@pytest.fixture
async def client(
    request: pytest.FixtureRequest, pauses: Pauses, embedded: RunningGateway, proxy: FaultyProxy
) -> AsyncIterator[AsyncClient]:
    kind = request.node.callspec.params["pauses"]
    async with make_client(kind, proxy.url, embedded.token("demo"), sleep=pauses.sleep) as client:
        yield client


@pytest.mark.parametrize("price", [Decimal("150.105"), "150.105", "150.1050"])
async def test_exact_amounts_arrive_exactly(client: AsyncClient, price: Decimal | str) -> None:
    placed = await client.place("USDJPY", "SELL", "1000", limit_price=price)
    order = await client.order(placed.order_id)
    assert (order.qty, order.price) == (Decimal(1000), Decimal("150.105"))


async def test_a_float_is_rejected_with_the_text_to_pass_instead(client: AsyncClient, proxy: FaultyProxy) -> None:
    with pytest.raises(InvalidField, match=r"qty: .*not the float 0\.1: .*pass '0\.1' or Decimal\('0\.1'\)"):
        await client.place("USDJPY", "BUY", 0.1)  # type: ignore[arg-type]
    with pytest.raises(InvalidField, match=r"limit_price: .*not the float 150\.0"):
        await client.place("USDJPY", "BUY", 1, limit_price=150.0)  # type: ignore[arg-type]
    with pytest.raises(InvalidField, match="price"):
        await client.do_order("USDJPY", "BUY", 1, price=150.0)  # type: ignore[arg-type]
    assert proxy.headers("Idempotency-Key") == []


@pytest.mark.parametrize("amount", [True, None, "1_000", "", "abc", "NaN", Decimal("Infinity")])
async def test_an_amount_that_is_no_number_is_rejected_before_sending(
    client: AsyncClient, proxy: FaultyProxy, amount: Any
) -> None:
    with pytest.raises(InvalidField, match="qty: must be"):
        await client.place("USDJPY", "BUY", amount)
    assert proxy.headers("Idempotency-Key") == []


async def test_do_order_returns_the_result_of_the_broker(client: AsyncClient) -> None:
    result = await client.do_order("USDJPY", "BUY", "0.1", order_id="o-1", tags=["demo"], trace_id="t-1")
    assert (result.status, result.filled_qty, result.order_id) == ("filled", Decimal("0.1"), "o-1")
    assert [fill.qty for fill in result.fills] == [Decimal("0.1")]
    [order] = [order async for order in client.orders()]
    assert (order.client_order_id, order.qty, order.tags) == ("o-1", Decimal(10_000), ("demo",))


@pytest.mark.parametrize("fault", ["be_unavailable", "lose_answer"])
async def test_do_order_repeats_under_the_same_key_after_1_2_and_4_seconds(
    client: AsyncClient, proxy: FaultyProxy, pauses: Pauses, fault: str
) -> None:
    getattr(proxy, fault)(times=3)
    result = await client.do_order("USDJPY", "BUY", "0.1")
    assert result.status == "filled"
    assert pauses.seconds == [1.0, 2.0, 4.0]
    assert proxy.headers("Idempotency-Key") == [result.idempotency_key] * 4
    assert len([order async for order in client.orders()]) == 1


async def test_after_three_repeats_do_order_fails_with_the_key_that_finds_the_result(
    client: AsyncClient, proxy: FaultyProxy, pauses: Pauses
) -> None:
    proxy.lose_answer(times=4)
    with pytest.raises(NotReachable) as failure:
        await client.do_order("USDJPY", "BUY", "0.1")
    assert pauses.seconds == [1.0, 2.0, 4.0]
    assert failure.value.idempotency_key is not None
    result = await client.do_order("USDJPY", "BUY", "0.1", idempotency_key=failure.value.idempotency_key)
    assert result.status == "filled"
    assert len([order async for order in client.orders()]) == 1


async def test_a_violated_condition_of_do_order_is_not_repeated(client: AsyncClient, pauses: Pauses) -> None:
    with pytest.raises(ApiError) as failure:
        await client.do_order("USDJPY", "BUY", "0.1", risk_constraints=RiskConstraints(max_spread=Decimal(0)))
    assert (failure.value.status, failure.value.field) == (422, "risk_constraints.max_spread")
    assert pauses.seconds == []


async def test_a_stream_yields_typed_events(client: AsyncClient) -> None:
    placed = await client.place("USDJPY", "BUY", 1000)
    seen = []
    async with aclosing(client.stream(placed.order_id, last_event_id="0")) as events:
        async with asyncio.timeout(DEADLINE_SECONDS):
            async for event in events:
                seen.append(event)
                if isinstance(event, OrderUpdate) and event.order.status == "FILLED":
                    break
    [report] = [event.report for event in seen if isinstance(event, ExecutionReported) and event.report.last_qty]
    assert (report.order_id, report.last_qty, report.symbol) == (placed.order_id, Decimal(1000), "USDJPY")
    assert [type(event).__name__ for event in seen if isinstance(event, UnknownEvent)] == []


async def test_recorded_events_have_typed_facts(client: AsyncClient, embedded: RunningGateway) -> None:
    placed = await client.place("USDJPY", "BUY", 1000)
    await embedded.until_status(placed.order_id, "FILLED")
    facts = [(event.type, event.fact) async for event in client.events(order_id=placed.order_id)]
    assert {kind for kind, fact in facts if isinstance(fact, ReportFact)} == {"ExecutionReport"}
    [accepted] = [fact for _, fact in facts if isinstance(fact, AcceptedFact)]
    assert (accepted.order.symbol, accepted.order.qty) == ("USDJPY", Decimal(1000))
    changes = [fact.order for _, fact in facts if isinstance(fact, OrderFact)]
    assert [change.version for change in changes] == list(range(2, len(changes) + 2))
    assert (changes[-1].status, changes[-1].filled_qty) == ("FILLED", Decimal(1000))


def test_every_message_has_its_type_and_that_of_a_newer_gateway_is_unknown() -> None:
    new = stream_event(Message(event="margin_call", data="{}", id="7"))
    assert isinstance(new, UnknownEvent)
    assert new.id == "7"
    end = stream_event(Message(event="token_expired", data='{"reason":"TOKEN_EXPIRED"}', id="7"))
    assert isinstance(end, TokenExpired)
    closing = stream_event(Message(event="server_closing", data='{"reason":"SERVER_CLOSING"}', id="7"))
    assert isinstance(closing, ServerClosing)
    gap = stream_event(
        Message(
            event="resync_required",
            data='{"scope":"account","id":"a","lastEventId":1,"oldestAvailableId":9,"eventsEndpoint":"/x","new":1}',
        )
    )
    assert isinstance(gap, ResyncRequired)
    assert (gap.scope, gap.last_event_id, gap.oldest_available_id, gap.events_endpoint) == ("account", 1, 9, "/x")
    with pytest.raises(UnreadableResponse):
        stream_event(Message(event="order_update", data="{}"))


def test_a_report_shows_its_fee_and_kind_and_both_may_be_absent() -> None:
    report = OrderReport(
        exec_id="1",
        venue=VenueName("sim"),
        venue_client_order_id=VenueClientOrderId("one"),
        venue_order_id="sim-1",
        status="FILLED",
        last_qty=Decimal(1),
        last_price=Decimal(150),
        filled_qty_total=Decimal(1),
        reason=None,
        at=datetime(2026, 1, 5, tzinfo=UTC),
        order_id=OrderId("ord_01KE6P4YM00000000000000001"),
        symbol="USDJPY",
        side="BUY",
    )
    charged = replace(report, fee=Decimal("-0.00000001"), fee_currency="JPY", exec_type="FILL", ref_exec_id="0")
    for sent in (report, charged):
        data = encode(sent).decode()
        assert ("fee" in data) == (sent is charged)
        read = stream_event(Message(event="execution_report", data=data))
        assert isinstance(read, ExecutionReported)
        assert read.report == sent


def test_both_clients_have_the_same_methods() -> None:
    def methods(client: type) -> dict[str, str]:
        public = {name: value for name, value in vars(client).items() if not name.startswith("_")}
        return {name: str(inspect.signature(value)).partition(" ->")[0] for name, value in public.items()}

    synchronous = methods(Client)
    del synchronous["close"]  # closed by `async with` in the other
    assert synchronous == methods(AsyncClient)


@pytest.mark.parametrize("url", ["localhost:8081", "ftp://host", "http://", "http://host:port"])
@pytest.mark.parametrize("kind", [AsyncClient, Client])
def test_a_wrong_url_is_rejected_when_the_client_is_made(kind: type[AsyncClient] | type[Client], url: str) -> None:
    with pytest.raises(InvalidField, match="base_url"):
        kind(url, "token")


async def test_the_synchronous_client_uses_its_connection_again(embedded: RunningGateway) -> None:
    async with faulty_proxy(embedded.url) as proxy:
        with Client(proxy.url, embedded.token()) as client:
            for _ in range(3):
                await asyncio.to_thread(client.place, "USDJPY", "BUY", 1000)
        assert len(proxy.headers("Idempotency-Key")) == 3
        assert proxy.connections == 1


async def test_the_synchronous_client_notices_that_the_server_closed_an_idle_connection() -> None:
    async with served_once_per_connection() as (url, closed):
        with Client(url, "token", retry=Retry(attempts_max=1)) as client:
            for _ in range(3):
                assert (await asyncio.to_thread(client.cancel, "ord_1")).status == "CANCEL_REQUESTED"
                async with asyncio.timeout(DEADLINE_SECONDS):
                    await closed.acquire()


async def test_threads_share_the_synchronous_client(embedded: RunningGateway) -> None:
    def place_all() -> set[str]:
        with Client(embedded.url, embedded.token()) as client, ThreadPoolExecutor(8) as pool:
            return {each.order_id for each in pool.map(lambda _: client.place("USDJPY", "BUY", 1000), range(40))}

    assert len(await asyncio.to_thread(place_all)) == 40


@asynccontextmanager
async def served_once_per_connection() -> AsyncIterator[tuple[str, asyncio.Semaphore]]:
    """A server that closes each connection after one response, without announcing it, and counts that."""
    closed = asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"orderId":"ord_1","status":"CANCEL_REQUESTED"}'
        writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        closed.release()

    async with serving(serve) as port:
        yield f"http://127.0.0.1:{port}", closed
