"""The proxy of the network faults does what its faults say; the server's requests are the judge."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.hop_proxy import HopProxy, hop_proxy, reset
from tests.support.polling import DEADLINE_SECONDS, until
from tests.support.scripted_server import ScriptedServer, reply, scripted_server

ORDER = b"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
LOOKUP = b"GET /orders/one HTTP/1.1\r\nHost: x\r\n\r\n"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_writers: list[asyncio.StreamWriter] = []


@pytest.fixture(autouse=True)
async def closed_connections() -> AsyncIterator[None]:
    yield
    for writer in _writers:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for writer in _writers), return_exceptions=True)
    _writers.clear()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with scripted_server(reply(200, {})) as server:
        yield server


@pytest.fixture
async def proxy(server: ScriptedServer) -> AsyncIterator[HopProxy]:
    async with hop_proxy(int(server.url.rpartition(":")[2])) as proxy:
        yield proxy


async def sent(proxy: HopProxy, request: bytes) -> Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    _writers.append(writer)
    writer.write(request)
    return reader, writer


async def answered(connection: Connection) -> bytes:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await connection[0].read(65536)


async def test_it_forwards_and_keeps_a_connection(proxy: HopProxy, server: ScriptedServer) -> None:
    reader, writer = await sent(proxy, ORDER)
    assert b"200 OK" in await answered((reader, writer))
    writer.write(LOOKUP)
    assert b"200 OK" in await answered((reader, writer))
    assert [request.method for request in server.requests] == ["POST", "GET"]
    assert server.connections == 1


async def test_a_held_order_is_delivered_after_its_client_has_gone(proxy: HopProxy, server: ScriptedServer) -> None:
    proxy.hold(b"POST /orders ")
    _, writer = await sent(proxy, ORDER)
    await until(lambda: proxy.waiting == 1)
    writer.transport.abort()
    lookup = await sent(proxy, LOOKUP)
    assert b"200 OK" in await answered(lookup)
    assert [request.method for request in server.requests] == ["GET"]
    proxy.release()
    await until(lambda: len(server.requests) == 2)


@pytest.mark.parametrize("is_reset", [True, False])
async def test_a_partition_delivers_what_its_sender_did_not_destroy(
    is_reset: bool, proxy: HopProxy, server: ScriptedServer
) -> None:
    proxy.partition()
    _, writer = await sent(proxy, ORDER)
    await until(lambda: proxy.waiting == 1)
    if is_reset:
        reset(writer)
    else:
        writer.close()
    await until(lambda: not is_reset or any(client.transport.is_closing() for client in proxy._clients))
    proxy.heal()
    await until(lambda: not proxy.waiting)
    await until(lambda: not proxy._clients)
    assert len(server.requests) == (0 if is_reset else 1)


async def test_a_replay_and_a_copy_arrive_again(proxy: HopProxy, server: ScriptedServer) -> None:
    proxy.duplicate(b"POST")
    connection = await sent(proxy, ORDER)
    await answered(connection)
    await until(lambda: len(server.requests) == 2)
    assert b"200 OK" in await proxy.replay_last(b"POST")
    assert len(server.requests) == 3


async def test_a_cut_resets_connections_until_it_is_healed(proxy: HopProxy, server: ScriptedServer) -> None:
    old = await sent(proxy, LOOKUP)
    await answered(old)
    proxy.cut()
    assert await _ended(old)
    assert await _ended(await sent(proxy, ORDER))
    proxy.heal()
    assert b"200 OK" in await answered(await sent(proxy, ORDER))
    assert [request.method for request in server.requests] == ["GET", "POST"]


@pytest.mark.parametrize(("place", "arrived"), [("request", 0), ("answer", 1)])
async def test_a_connection_is_cut_in_the_middle(
    place: Any, arrived: int, proxy: HopProxy, server: ScriptedServer
) -> None:
    proxy.cut_next(place, b"POST")
    reader, _ = await sent(proxy, ORDER)
    received = b""
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            received = await reader.read()
    except ConnectionError:
        pass
    assert b"{}" not in received
    assert len(server.requests) == arrived


async def test_a_blackhole_leaves_connections_open_and_silent(proxy: HopProxy, server: ScriptedServer) -> None:
    proxy.blackhole()
    reader, writer = await sent(proxy, ORDER)
    await until(lambda: proxy.swallowed == 1)
    proxy.heal()
    writer.write(LOOKUP)
    await until(lambda: proxy.swallowed == 2)
    assert not reader.at_eof()
    assert b"200 OK" in await answered(await sent(proxy, LOOKUP))
    assert [request.method for request in server.requests] == ["GET"]


async def _ended(connection: Connection) -> bool:
    try:
        return await answered(connection) == b""
    except ConnectionError:
        return True
