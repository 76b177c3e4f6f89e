import asyncio
import itertools
import json
import logging
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.domain import decisions
from switchyard.domain.changes import Change, Committed
from switchyard.domain.errors import SwitchyardError
from switchyard.domain.events import JournalEvent, encode
from switchyard.domain.ids import AccountId, OrderId, VenueClientId, VenueName, WorkerId
from switchyard.domain.orders import OrderRequest, snapshot
from switchyard.domain.reports import ExecutionReport
from switchyard.entrypoints.http import streams
from switchyard.entrypoints.http.errors import error_answer
from switchyard.entrypoints.http.protocol import ABORT
from switchyard.entrypoints.http.streams import StreamEndpoint
from switchyard.flow.metrics import Metrics
from switchyard.flow.stream import StreamHub
from switchyard.flow.wake import Wake
from switchyard.ports.queries import Queries

ANN, BOB = "ann", "bob"
AT = datetime(2025, 3, 4, 9, 30, tzinfo=UTC)
# Far beyond what any machine needs: a test that waits this long has failed.
DEADLINE_SECONDS = 60.0
# As small as the kernel allows, so that a reader that takes nothing is noticed soon.
SOCKET_BUFFER_BYTES = 4_096
GROUPS = itertools.count()


class AbortingProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the one extension that the streams ask for."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(Scope, self.scope)["extensions"] = {ABORT: self.transport.abort}


class Exchange:
    """Orders whose life the test decides, over a real database."""

    def __init__(self, database: SqliteDatabase, wake: Wake) -> None:
        self._database = database
        self._wake = wake

    async def place(self, order_id: str, account: str = ANN) -> int:
        return await self._commit(
            decisions.accept(
                OrderRequest(
                    symbol="BTC", side="BUY", type="LIMIT", qty=Decimal(2), price=Decimal(9), time_in_force="GTC"
                ),
                account=AccountId(account),
                order_id=OrderId(order_id),
                venue=VenueName("sim"),
                venue_client_id=VenueClientId(f"client of {order_id}"),
                ledger=None,
                quote=None,
                now=AT,
            )
        )

    async def touch(self, order_id: str) -> int:
        """One more change of the order: an attempt begins, or is proven unsent."""
        state = (await self._database.journal.load([OrderId(order_id)]))[OrderId(order_id)]
        row = state.row("new", 1)
        if row.status == "sending":
            return await self._commit(decisions.record_unsent(state, row, "refused", AT + timedelta(hours=1), AT))
        return await self._commit(decisions.begin_attempt(state, row, WorkerId("worker"), AT))

    async def fill(self, order_id: str) -> int:
        state = (await self._database.journal.load([OrderId(order_id)]))[OrderId(order_id)]
        report = ExecutionReport(
            exec_id=f"fill of {order_id}",
            venue=VenueName("sim"),
            venue_client_id=state.order.venue_client_id,
            venue_order_id="v",
            status="FILLED",
            last_qty=Decimal(2),
            last_price=Decimal(9),
            filled_qty_total=Decimal(2),
            reason="two\nlines",
            at=AT,
        )
        key = (state.order.account_id, state.order.symbol)
        position = (await self._database.journal.load_positions([key])).get(key)
        return await self._commit(decisions.apply_report(state, position, report, AT))

    async def _commit(self, change: Change) -> int:
        [outcome] = await self._database.journal.append(0, f"group {next(GROUPS)}", [change], AT)
        assert isinstance(outcome, Committed)
        self._wake.notify()
        return outcome.first_seq


class Gateway:
    """A hub, its endpoint and a server, with what a test wants to look at."""

    def __init__(
        self, database: SqliteDatabase, queries: Queries | None, hub: dict[str, Any], endpoint: dict[str, Any]
    ):
        self.metrics = Metrics()
        self.wake = Wake()
        self.hub = StreamHub(database.journal, database.queries, metrics=self.metrics, **hub)
        self.exchange = Exchange(database, self.wake)
        self._endpoint = StreamEndpoint(self.hub, queries or database.queries, **endpoint)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        self.port: int = self._listener.getsockname()[1]
        app = cast(ASGI3Application, self._app)
        self.server = uvicorn.Server(
            uvicorn.Config(app, interface="asgi3", http=AbortingProtocol, lifespan="off", log_config=None)
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self.hub.run(self.wake)),
            asyncio.create_task(self.server.serve(sockets=[self._listener])),
        ]
        await eventually(lambda: self.server.started)

    async def stop(self) -> None:
        self.hub.close()
        self.server.should_exit = True
        async with asyncio.timeout(DEADLINE_SECONDS):
            await asyncio.gather(*self._tasks)

    @property
    def slow_readers(self) -> float | None:
        return self.metrics.registry.get_sample_value("sse_slow_readers_total")

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        account = AccountId(dict(scope["headers"])[b"x-account"].decode())
        try:
            if scope["path"] == "/stream":
                await self._endpoint.account(account, scope, receive, send)
            else:
                order_id = OrderId(scope["path"].split("/")[2])
                await self._endpoint.order(account, order_id, scope, receive, send)
        except SwitchyardError as error:
            answer = error_answer(error)
            await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
            await send({"type": "http.response.body", "body": answer.body})


class Client:
    """One connection, read as bytes arrive: nothing here understands more than HTTP's chunks and blank lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._text = b""
        self.status = 0
        self.headers: dict[str, str] = {}

    async def begin(self, request: str) -> None:
        self._writer.write(request.encode())
        async with asyncio.timeout(DEADLINE_SECONDS):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.status = int(head[0].split()[1])
        self.headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)

    async def body(self) -> bytes:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self._reader.readexactly(int(self.headers["content-length"]))

    async def block(self) -> str | None:
        """The next message or comment; none when the stream has ended as it should."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while b"\n\n" not in self._text:
                size = int(await self._reader.readline(), 16)
                self._text += (await self._reader.readexactly(size + 2))[:-2]
                if not size:
                    return None
        block, self._text = self._text.split(b"\n\n", 1)
        return block.decode()

    async def message(self) -> tuple[int | None, str, Any]:
        """The next message: id, name and data."""
        block = await self.block()
        assert block is not None
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        return (int(fields["id"]) if "id" in fields else None), fields["event"], json.loads(fields["data"])

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@asynccontextmanager
async def get(
    gateway: Gateway, path: str, account: str = ANN, *headers: str, method: str = "GET"
) -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_connection("127.0.0.1", gateway.port))
    try:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"X-Account: {account}", *headers, "", ""]
        await client.begin("\r\n".join(lines))
        yield client
    finally:
        await client.close()


async def eventually(true: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_SECONDS
    while not true():
        assert loop.time() < deadline, "it never came true"
        await asyncio.sleep(0.005)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    await SqliteDatabase.upgrade(tmp_path / "switchyard.db")
    database = await SqliteDatabase.open(tmp_path / "switchyard.db")
    yield database
    await database.close()


@pytest.fixture(autouse=True)
def nothing_goes_wrong_unseen(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """uvicorn logs what an application does wrong, and goes on."""
    yield
    assert [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR] == []


@asynccontextmanager
async def serving(
    database: SqliteDatabase, *, queries: Queries | None = None, hub: dict[str, Any] | None = None, **endpoint: Any
) -> AsyncIterator[Gateway]:
    gateway = Gateway(database, queries, hub or {}, endpoint)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()


async def test_an_account_is_told_that_the_stream_stands_and_then_what_happens(database: SqliteDatabase) -> None:
    async with serving(database) as gateway:
        head = await gateway.exchange.place("ord_1")
        async with get(gateway, "/stream") as client:
            assert client.status == 200
            assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert client.headers["cache-control"] == "no-store"
            assert client.headers["x-accel-buffering"] == "no"
            assert await client.message() == (head, "ready", {"accountId": ANN})
            await gateway.exchange.place("ord_of_bob", BOB)
            number = await gateway.exchange.fill("ord_1")
            id, name, report = await client.message()
            assert (id, name, report["execId"]) == (number, "execution_report", "fill of ord_1")
            id, name, order = await client.message()
            assert (id, name, order["status"]) == (number + 1, "order_update", "FILLED")


async def test_an_order_is_shown_and_then_followed(database: SqliteDatabase) -> None:
    async with serving(database) as gateway:
        await gateway.exchange.place("ord_1")
        number = await gateway.exchange.touch("ord_1")
        await gateway.exchange.place("ord_2")
        async with get(gateway, "/orders/ord_1/stream") as client:
            assert await client.message() == (None, "ready", {"orderId": "ord_1"})
            order = await database.queries.order(OrderId("ord_1"))
            assert order is not None
            assert await client.message() == (number, "order_snapshot", json.loads(encode(snapshot(order))))
            await gateway.exchange.touch("ord_2")
            number = await gateway.exchange.touch("ord_1")
            id, name, data = await client.message()
            assert (id, name, data["version"]) == (number, "order_update", 3)


async def test_an_order_stream_opened_at_any_moment_shows_each_later_change_once(database: SqliteDatabase) -> None:
    chance = random.Random(7)
    changes = 150
    async with serving(database) as gateway:
        await gateway.exchange.place("ord_1")

        async def follow() -> None:
            async with get(gateway, "/orders/ord_1/stream") as client:
                assert (await client.message())[1] == "ready"
                place, name, data = await client.message()
                assert name == "order_snapshot"
                while data["version"] <= changes:
                    if chance.random() < 0.1:
                        break
                    version = data["version"]
                    place, name, data = await client.message()
                    assert (name, data["version"]) == ("order_update", version + 1)
            # What it has seen last is what it continues after, be it the snapshot or an update.
            async with get(gateway, "/orders/ord_1/stream", ANN, f"Last-Event-ID: {place}") as client:
                assert (await client.message())[1] == "ready"
                while data["version"] <= changes:
                    version = data["version"]
                    _, name, data = await client.message()
                    assert (name, data["version"]) == ("order_update", version + 1)

        async with asyncio.TaskGroup() as group:
            for _ in range(changes):
                await gateway.exchange.touch("ord_1")
                if chance.random() < 0.3:
                    group.create_task(follow())
        await eventually(lambda: gateway.hub.subscribers == 0)


class Archived:
    """Lookups in a database whose events have been moved elsewhere."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queries, name)

    async def last_events(self, **_wanted: Any) -> list[JournalEvent]:
        return []


async def test_an_order_whose_events_are_archived_is_shown_from_its_row(database: SqliteDatabase) -> None:
    async with serving(database, queries=cast(Queries, Archived(database.queries))) as gateway:
        await gateway.exchange.place("ord_1")
        head = await gateway.exchange.place("ord_2")
        async with get(gateway, "/orders/ord_1/stream") as client:
            assert (await client.message())[1] == "ready"
            id, name, data = await client.message()
            assert (id, name, data["version"]) == (head, "order_snapshot", 1)
            number = await gateway.exchange.touch("ord_1")
            assert (await client.message())[:2] == (number, "order_update")


async def test_a_stream_continues_after_the_last_event_id_even_when_the_gateway_was_replaced(
    database: SqliteDatabase,
) -> None:
    async with serving(database) as gateway:
        async with get(gateway, "/stream") as client:
            assert (await client.message())[1] == "ready"
            first = await gateway.exchange.place("ord_1")
            assert (await client.message())[:2] == (first, "order_update")
        second = await gateway.exchange.touch("ord_1")
    async with serving(database) as gateway:
        async with get(gateway, "/stream", ANN, f"Last-Event-ID: {first}") as client:
            assert (await client.message())[:2] == (first, "ready")
            assert (await client.message())[:2] == (second, "order_update")
            third = await gateway.exchange.touch("ord_1")
            assert (await client.message())[:2] == (third, "order_update")
        async with get(gateway, f"/orders/ord_1/stream?lastEventId={first}") as client:
            assert (await client.message())[:2] == (None, "ready")
            assert (await client.message())[:2] == (second, "order_update")


async def test_the_header_wins_over_the_address_that_a_browser_repeats(database: SqliteDatabase) -> None:
    async with serving(database) as gateway:
        numbers = [await gateway.exchange.place(f"ord_{number}") for number in range(3)]
        async with get(gateway, "/stream?lastEventId=0", ANN, f"Last-Event-ID: {numbers[1]}") as client:
            assert (await client.message())[:2] == (numbers[1], "ready")
            assert (await client.message())[:2] == (numbers[2], "order_update")


async def test_an_id_from_the_future_means_a_new_start(database: SqliteDatabase) -> None:
    async with serving(database) as gateway:
        head = await gateway.exchange.place("ord_1")
        async with get(gateway, "/stream", ANN, "Last-Event-ID: 999999999999999999") as client:
            assert (await client.message())[1] == "ready"
            id, name, data = await client.message()
            assert (id, name) == (head, "resync_required")
            assert data == {
                "scope": "account",
                "id": ANN,
                "lastEventId": 999999999999999999,
                "oldestAvailableId": head,
                "eventsEndpoint": "/accounts/ann/events",
            }
            number = await gateway.exchange.touch("ord_1")
            assert (await client.message())[:2] == (number, "order_update")


@pytest.mark.parametrize(
    ("path", "headers", "field"),
    [
        ("/stream", ["Last-Event-ID: -1"], "Last-Event-ID"),
        ("/stream", ["Last-Event-ID: one"], "Last-Event-ID"),
        ("/stream", ["Last-Event-ID: 1.0"], "Last-Event-ID"),
        ("/stream", ["Last-Event-ID:"], "Last-Event-ID"),
        ("/stream", ["Last-Event-ID: ²"], "Last-Event-ID"),
        ("/stream", ["Last-Event-ID: " + "9" * 5_000], "Last-Event-ID"),
        ("/stream", ["Last-Event-ID: 1", "Last-Event-ID: 2"], "Last-Event-ID"),
        ("/stream?lastEventId=", [], "lastEventId"),
        ("/orders/ord_1/stream?lastEventId=x", [], "lastEventId"),
    ],
)
async def test_a_last_event_id_that_is_no_number_is_refused(
    database: SqliteDatabase, path: str, headers: list[str], field: str
) -> None:
    async with serving(database) as gateway:
        await gateway.exchange.place("ord_1")
        async with get(gateway, path, ANN, *headers) as client:
            assert client.status == 400
            body = json.loads(await client.body())
            assert (body["status"], body["reason"], body["field"]) == ("REJECTED", "VALIDATION_ERROR", field)
        assert gateway.hub.subscribers == 0


async def test_a_foreign_order_looks_exactly_like_a_missing_one(database: SqliteDatabase) -> None:
    async with serving(database) as gateway:
        await gateway.exchange.place("ord_1")
        answers = []
        for path, account in (("/orders/ord_1/stream", BOB), ("/orders/ord_9/stream", BOB), ("/orders//stream", BOB)):
            async with get(gateway, path, account, "Last-Event-ID: 0") as client:
                headers = {name: value for name, value in client.headers.items() if name != "date"}
                answers.append((client.status, headers, await client.body()))
        assert answers[0][0] == 404
        assert answers[0] == answers[1] == answers[2]


async def test_no_stream_is_opened_beyond_the_bound(database: SqliteDatabase) -> None:
    async with serving(database, hub={"subscribers_max": 1}) as gateway, get(gateway, "/stream") as first:
        assert (await first.message())[1] == "ready"
        async with get(gateway, "/stream") as second:
            assert (second.status, json.loads(await second.body())["reason"]) == (503, "QUEUE_REJECT")


async def test_silence_is_filled_with_comments(database: SqliteDatabase) -> None:
    async with serving(database, keepalive_seconds=0.02) as gateway, get(gateway, "/stream") as client:
        assert (await client.message())[1] == "ready"
        assert [await client.block() for _ in range(3)] == [": keepalive"] * 3
        number = await gateway.exchange.place("ord_1")
        while (block := await client.block()) == ": keepalive":
            pass
        assert block is not None
        assert block.startswith(f"id: {number}\nevent: order_update\ndata: ")


async def test_a_reader_that_hangs_up_is_forgotten_without_anything_to_tell_it(database: SqliteDatabase) -> None:
    async with serving(database) as gateway:
        async with get(gateway, "/stream") as client:
            assert (await client.message())[1] == "ready"
            assert gateway.hub.subscribers == 1
        await eventually(lambda: gateway.hub.subscribers == 0)


async def test_a_request_for_the_headers_alone_is_answered_and_over(database: SqliteDatabase) -> None:
    async with serving(database) as gateway, get(gateway, "/stream", method="HEAD") as client:
        assert client.status == 200
        assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
        await eventually(lambda: gateway.hub.subscribers == 0)


@asynccontextmanager
async def idle_reader(gateway: Gateway) -> AsyncIterator[socket.socket]:
    """A connection that asks for the stream and then takes nothing of it."""
    with socket.socket() as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        idle.setblocking(False)
        loop = asyncio.get_running_loop()
        before = gateway.hub.subscribers
        await loop.sock_connect(idle, ("127.0.0.1", gateway.port))
        await loop.sock_sendall(idle, b"GET /stream HTTP/1.1\r\nHost: localhost\r\nX-Account: ann\r\n\r\n")
        await eventually(lambda: gateway.hub.subscribers == before + 1)
        yield idle


async def test_a_reader_that_takes_nothing_is_cut_off_while_others_go_on(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "FINISH_SECONDS", 0.05)
    async with serving(database, hub={"queue_capacity": 20}) as gateway:
        await gateway.exchange.place("ord_1")
        async with get(gateway, "/stream") as swift, idle_reader(gateway) as idle:
            assert (await swift.message())[1] == "ready"
            assert gateway.hub.subscribers == 2
            while not gateway.slow_readers:
                number = await gateway.exchange.touch("ord_1")
                assert (await swift.message())[:2] == (number, "order_update")
            await eventually(lambda: gateway.hub.subscribers == 1 and gateway.connections == 1)
            number = await gateway.exchange.touch("ord_1")
            assert (await swift.message())[:2] == (number, "order_update")
            assert gateway.slow_readers == 1
            async with asyncio.timeout(DEADLINE_SECONDS):
                with suppress(ConnectionResetError):
                    while await asyncio.get_running_loop().sock_recv(idle, 65_536):
                        pass


async def test_a_reader_that_takes_nothing_for_long_is_cut_off_before_its_queue_is_full(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "FINISH_SECONDS", 0.05)
    async with serving(database, stall_seconds_max=0.2, hub={"queue_capacity": 1_000_000}) as gateway:
        await gateway.exchange.place("ord_1")
        async with idle_reader(gateway):
            async with asyncio.timeout(DEADLINE_SECONDS):
                while gateway.hub.subscribers:
                    await gateway.exchange.touch("ord_1")
            await eventually(lambda: gateway.connections == 0)
            assert gateway.slow_readers == 0


async def test_streams_end_properly_when_the_gateway_stops(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "FINISH_SECONDS", 0.05)
    async with serving(database) as gateway:
        await gateway.exchange.place("ord_1")
        async with get(gateway, "/stream") as client, idle_reader(gateway):
            assert (await client.message())[1] == "ready"
            # Far more than the kernel and the server buffer for the one that takes nothing.
            for _ in range(500):
                await gateway.exchange.touch("ord_1")
                assert (await client.message())[1] == "order_update"
            await gateway.stop()
            assert await client.block() is None
            assert gateway.hub.subscribers == 0


async def test_a_stream_that_begins_while_the_gateway_stops_ends_properly(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(database) as gateway:

        async def head() -> int:
            gateway.hub.close()
            return 0

        monkeypatch.setattr(gateway.hub, "head", head)
        async with get(gateway, "/stream") as client:
            assert client.status == 200
            assert (await client.message())[1] == "ready"
            assert await client.block() is None
