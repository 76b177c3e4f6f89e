"""The stream endpoints on a real socket over a SQLite database, and a client that parses the raw bytes."""

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.adapters.system_clock import SystemClock
from switchyard.domain import decisions
from switchyard.domain.errors import SwitchyardError
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.journal.changes import Change, Committed
from switchyard.domain.orders.order import OrderRequest
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.entrypoints.http.errors import error_response
from switchyard.entrypoints.http.streams import StreamEndpoint
from switchyard.entrypoints.http.transport.protocol import ABORT
from switchyard.flow.clock import Wake
from switchyard.flow.readers.stream import StreamHub
from switchyard.ports.queries import Queries
from switchyard.telemetry.metrics import Metrics
from tests.support.polling import DEADLINE_SECONDS, until

ANN, BOB = "ann", "bob"
AT = datetime(2025, 3, 4, 9, 30, tzinfo=UTC)
NEVER = datetime(9999, 1, 1, tzinfo=UTC)
# As small as the kernel allows, so that a reader that reads nothing soon blocks the writer.
SOCKET_BUFFER_BYTES = 4_096
GROUPS = itertools.count()


class AbortingProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the abort extension that the stream endpoints use."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(Scope, self.scope)["extensions"] = {ABORT: self.transport.abort}


class Exchange:
    """Places and changes orders directly in the journal."""

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
                venue_client_order_id=VenueClientOrderId(f"client of {order_id}"),
                key=None,
                quote=None,
                now=AT,
            )
        )

    async def touch(self, order_id: str) -> int:
        """Change the order once more: begin an attempt, or record it as unsent."""
        state = (await self._database.journal.load([OrderId(order_id)]))[OrderId(order_id)]
        row = state.row("new", 1)
        if row.status == "sending":
            return await self._commit(decisions.record_unsent(state, row, "BROKER_DOWN", AT + timedelta(hours=1), AT))
        return await self._commit(decisions.begin_attempt(state, row, WorkerId("worker"), AT))

    async def fill(self, order_id: str) -> int:
        state = (await self._database.journal.load([OrderId(order_id)]))[OrderId(order_id)]
        report = ExecutionReport(
            exec_id=f"fill of {order_id}",
            venue=VenueName("sim"),
            venue_client_order_id=state.order.venue_client_order_id,
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
    """A hub, its endpoints and an HTTP server, with the figures that tests read."""

    def __init__(
        self, database: SqliteDatabase, queries: Queries | None, hub: dict[str, Any], endpoint: dict[str, Any]
    ):
        self.metrics = Metrics()
        self.wake = Wake()
        self.hub = StreamHub(database.journal, database.queries, metrics=self.metrics, **hub)
        self.exchange = Exchange(database, self.wake)
        self._endpoint = StreamEndpoint(self.hub, queries or database.queries, clock=SystemClock(), **endpoint)
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
        await until(lambda: self.server.started)

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
                await self._endpoint.account(account, scope, receive, send, NEVER)
            else:
                order_id = OrderId(scope["path"].split("/")[2])
                await self._endpoint.order(account, order_id, scope, receive, send, NEVER)
        except SwitchyardError as error:
            answer = error_response(error)
            await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
            await send({"type": "http.response.body", "body": answer.body})


class Client:
    """One connection; parses only HTTP chunks and blank lines, so that framing errors are not hidden."""

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
        """The next message or comment; none after a clean end of the stream."""
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
