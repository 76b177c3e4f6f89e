"""When a stream ends: readers that disconnect or stop reading, and a gateway that stops; keepalives in between."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.entrypoints.http import streams
from tests.support.polling import DEADLINE_SECONDS, until
from tests.support.stream_server import SOCKET_BUFFER_BYTES, Gateway, get, serving

pytestmark = pytest.mark.usefixtures("no_logged_errors")


async def test_a_stream_over_the_maximum_is_rejected(database: SqliteDatabase) -> None:
    async with serving(database, hub={"subscribers_max": 1}) as gateway, get(gateway, "/stream") as first:
        assert (await first.message())[1] == "ready"
        async with get(gateway, "/stream") as second:
            assert (second.status, json.loads(await second.body())["reason"]) == (503, "QUEUE_REJECT")


async def test_keepalive_comments_are_sent_while_nothing_happens(database: SqliteDatabase) -> None:
    async with serving(database, keepalive_seconds=0.02) as gateway, get(gateway, "/stream") as client:
        assert (await client.message())[1] == "ready"
        assert [await client.block() for _ in range(3)] == [": keepalive"] * 3
        number = await gateway.exchange.place("ord_1")
        while (block := await client.block()) == ": keepalive":
            pass
        assert block is not None
        assert block.startswith(f"id: {number}\nevent: order_update\ndata: ")


async def test_a_reader_that_disconnects_is_removed_without_a_new_message(database: SqliteDatabase) -> None:
    async with serving(database) as gateway:
        async with get(gateway, "/stream") as client:
            assert (await client.message())[1] == "ready"
            assert gateway.hub.subscribers == 1
        await until(lambda: gateway.hub.subscribers == 0)


async def test_a_head_request_gets_headers_and_ends(database: SqliteDatabase) -> None:
    async with serving(database) as gateway, get(gateway, "/stream", method="HEAD") as client:
        assert client.status == 200
        assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
        await until(lambda: gateway.hub.subscribers == 0)


@asynccontextmanager
async def idle_reader(gateway: Gateway) -> AsyncIterator[socket.socket]:
    """A connection that requests the stream and then reads nothing."""
    with socket.socket() as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        idle.setblocking(False)
        loop = asyncio.get_running_loop()
        before = gateway.hub.subscribers
        await loop.sock_connect(idle, ("127.0.0.1", gateway.port))
        await loop.sock_sendall(idle, b"GET /stream HTTP/1.1\r\nHost: localhost\r\nX-Account: ann\r\n\r\n")
        await until(lambda: gateway.hub.subscribers == before + 1)
        yield idle


async def test_a_reader_with_a_full_queue_is_disconnected_while_others_continue(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "FINISH_SECONDS", 0.05)
    async with serving(database, hub={"queue_capacity": 20}) as gateway:
        await gateway.exchange.place("ord_1")
        async with get(gateway, "/stream") as reading, idle_reader(gateway) as idle:
            assert (await reading.message())[1] == "ready"
            assert gateway.hub.subscribers == 2
            while not gateway.slow_readers:
                number = await gateway.exchange.touch("ord_1")
                assert (await reading.message())[:2] == (number, "order_update")
            await until(lambda: gateway.hub.subscribers == 1 and gateway.connections == 1)
            number = await gateway.exchange.touch("ord_1")
            assert (await reading.message())[:2] == (number, "order_update")
            assert gateway.slow_readers == 1
            async with asyncio.timeout(DEADLINE_SECONDS):
                with suppress(ConnectionResetError):
                    while await asyncio.get_running_loop().sock_recv(idle, 65_536):
                        pass


async def test_a_reader_that_stalls_is_disconnected_before_its_queue_is_full(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "FINISH_SECONDS", 0.05)
    async with serving(database, stall_seconds_max=0.2, hub={"queue_capacity": 1_000_000}) as gateway:
        await gateway.exchange.place("ord_1")
        async with idle_reader(gateway):
            async with asyncio.timeout(DEADLINE_SECONDS):
                while gateway.hub.subscribers:
                    await gateway.exchange.touch("ord_1")
            await until(lambda: gateway.connections == 0)
            assert gateway.slow_readers == 0


async def test_streams_end_cleanly_when_the_gateway_stops(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "FINISH_SECONDS", 0.05)
    async with serving(database) as gateway:
        await gateway.exchange.place("ord_1")
        async with get(gateway, "/stream") as client, idle_reader(gateway):
            assert (await client.message())[1] == "ready"
            # Far more than the kernel and the server buffer for the reader that reads nothing.
            for _ in range(500):
                await gateway.exchange.touch("ord_1")
                assert (await client.message())[1] == "order_update"
            await gateway.stop()
            assert (await client.message())[1] == "server_closing"
            assert await client.block() is None
            assert gateway.hub.subscribers == 0


async def test_a_stream_opened_while_the_gateway_stops_ends_cleanly(
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
            assert (await client.message())[1] == "server_closing"
            assert await client.block() is None
