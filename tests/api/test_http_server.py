"""The HTTP server: listening, connection limits, keep-alive and shutdown."""

import asyncio
import signal

import pytest

from switchyard.domain.errors import CannotStart
from switchyard.entrypoints.http.transport import server as http_server_module
from switchyard.entrypoints.http.transport.guard import ConnectionCaps
from switchyard.entrypoints.http.transport.protocol import BoundedHttpProtocol
from switchyard.entrypoints.http.transport.server import HttpServer
from tests.support.bare_http import HELLO, PATIENCE_SECONDS, SHORT_LIMIT_SECONDS, Application


async def ask(port: int, request: bytes) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async with asyncio.timeout(PATIENCE_SECONDS):
        answered = await reader.read()
    writer.close()
    return answered


async def refuses_connections(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def test_a_connection_over_the_limit_is_rejected_and_the_others_are_served() -> None:
    server = HttpServer(Application(), host="127.0.0.1", port=0, caps=ConnectionCaps(total_max=1))
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    assert b"TOO_MANY_CONNECTIONS" in await ask(server.port, b"")
    writer.write(HELLO)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    await server.stop(PATIENCE_SECONDS)
    writer.close()


@pytest.mark.parametrize("request_bytes", [HELLO, b"POST /early HTTP/1.1\r\nContent-Length: 5\r\n\r\n12345"])
async def test_an_idle_connection_is_closed_after_the_keep_alive_time(
    request_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server_module, "KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(BoundedHttpProtocol, "request_seconds_max", SHORT_LIMIT_SECONDS)
    server = HttpServer(Application(), host="127.0.0.1", port=0)
    await server.start()
    assert (await ask(server.port, request_bytes)).count(b"HTTP/1.1") == 1
    await server.stop(PATIENCE_SECONDS)


async def test_stopping_lets_requests_finish_and_closes_streams() -> None:
    application = Application()
    server = HttpServer(application, host="127.0.0.1", port=0)
    await server.start()
    stream, stream_writer = await asyncio.open_connection("127.0.0.1", server.port)
    stream_writer.write(b"GET /stream HTTP/1.1\r\n\r\n")
    await stream.readuntil(b"tick")
    waiting, waiting_writer = await asyncio.open_connection("127.0.0.1", server.port)
    waiting_writer.write(b"GET /wait HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(PATIENCE_SECONDS):
        await application.waiting.wait()
        stopping = asyncio.ensure_future(server.stop(PATIENCE_SECONDS))
        await stream.read()
        assert await refuses_connections(server.port)
        application.release.set()
        assert (await waiting.read()).endswith(b"waited")
        await stopping
    stream_writer.close()
    waiting_writer.close()


async def test_stopping_aborts_requests_that_exceed_the_grace_period() -> None:
    application = Application()
    server = HttpServer(application, host="127.0.0.1", port=0)
    await server.start()
    asked = asyncio.ensure_future(ask(server.port, b"GET /hang HTTP/1.1\r\n\r\n"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await application.waiting.wait()
        await server.stop(0.01)
        assert await asked == b""


async def test_an_address_in_use_is_an_error_that_names_the_setting() -> None:
    first = HttpServer(Application(), host="127.0.0.1", port=0)
    await first.start()
    with pytest.raises(CannotStart, match=rf"SWITCHYARD_BACKOFFICE_PORT.*{first.port}.*in use"):
        second = HttpServer(Application(), host="127.0.0.1", port=first.port, port_setting="SWITCHYARD_BACKOFFICE_PORT")
        await second.start()
    await first.stop(PATIENCE_SECONDS)
    again = HttpServer(Application(), host="127.0.0.1", port=first.port)
    await again.start()
    await again.stop(PATIENCE_SECONDS)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
async def test_a_host_of_another_machine_is_an_error_that_names_the_setting(host: str) -> None:
    with pytest.raises(CannotStart, match="SWITCHYARD_HOST"):
        await HttpServer(Application(), host=host, port=0).start()


async def test_the_server_installs_no_signal_handlers_and_sends_no_server_name() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = HttpServer(Application(), host="localhost", port=0)
    await server.start()
    answered = await ask(server.port, b"GET /hello HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert answered.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"uvicorn" not in answered
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    await server.stop(PATIENCE_SECONDS)
