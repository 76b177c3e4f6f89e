"""The hop to a broker: no byte is sent after the request was given up, none twice, and none through another hop."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohappyeyeballs import AddrInfoType

from switchyard.adapters.venues.http import transport as transport_module
from switchyard.adapters.venues.http.transport import (
    UNACKNOWLEDGED_SECONDS,
    BrokerResponse,
    Exchange,
    Lost,
    Transport,
    _new_socket,
)
from switchyard.adapters.venues.http.venue import RESPONSE_SECONDS
from tests.support.ports import free_port
from tests.support.scripted_server import hang_up, never_reply, reply, reset, scripted_server

LOCAL = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))
# More than the kernel's buffers of both ends hold at SMALL, so that the rest waits in this process.
LARGE = b"x" * 900_000
SMALL = 8192


@asynccontextmanager
async def transport_to(url: str) -> AsyncIterator[Transport]:
    transport = Transport(url, connections_max=4, idle_seconds=60.0, headers={})
    await transport.start()
    try:
        yield transport
    finally:
        await transport.close()


async def asked(transport: Transport, method: str = "GET", body: bytes | None = None) -> Exchange:
    return await transport.ask(method, "/orders", body=body, response_seconds=0.3, bytes_max=1000)


def loss_of(exchange: Exchange) -> str | None:
    """The code of a lost exchange, whatever address it went to."""
    return exchange.code if isinstance(exchange, Lost) else None


def test_the_kernel_forgets_a_request_with_its_socket() -> None:
    with _new_socket(LOCAL) as made:
        linger = made.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
        assert struct.unpack("ii", linger) == (1, 0)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNACKNOWLEDGED_SECONDS * 1000
    assert max(RESPONSE_SECONDS.values()) == UNACKNOWLEDGED_SECONDS


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_what_waits_in_the_process_is_discarded_when_a_request_is_given_up(
    is_cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def new_socket(address: AddrInfoType) -> socket.socket:
        made = _new_socket(address)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        return made

    monkeypatch.setattr(transport_module, "_new_socket", new_socket)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    listener.setblocking(False)
    loop = asyncio.get_running_loop()
    with listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        async with asyncio.timeout(20), transport_to(f"http://{address}") as transport:
            sending = asyncio.create_task(asked(transport, "POST", LARGE))
            peer, _ = await loop.sock_accept(listener)
            with peer:
                received = len(await loop.sock_recv(peer, 100))
                if is_cancelled:
                    sending.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await sending
                else:
                    assert loss_of(await sending) == "NETWORK_TIMEOUT"
                with pytest.raises(ConnectionResetError):
                    while chunk := await loop.sock_recv(peer, 65536):
                        received += len(chunk)
            assert received < len(LARGE)


@pytest.mark.parametrize("lost", [hang_up, reset])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_no_request_is_repeated_below_the_caller(lost: object, method: str) -> None:
    replies = reply(200, {}), lost, reply(200, {})
    async with scripted_server(*replies) as server, transport_to(server.url) as transport:  # type: ignore[arg-type]
        assert isinstance(await asked(transport, method), BrokerResponse)
        assert loss_of(await asked(transport, method)) == "NETWORK_DISCONNECTED"
        assert (server.connections, len(server.requests)) == (1, 2)


async def test_a_connection_is_not_reused_after_a_request_was_given_up() -> None:
    async with scripted_server(never_reply, reply(200, {})) as server, transport_to(server.url) as transport:
        assert loss_of(await asked(transport)) == "NETWORK_TIMEOUT"
        assert isinstance(await asked(transport), BrokerResponse)
        assert server.connections == 2


async def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    async with scripted_server(reply(200, {})) as server, transport_to(server.url) as transport:
        assert isinstance(await asked(transport, "POST", b"{}"), BrokerResponse)
        assert [request.path for request in server.requests] == ["/orders"]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_no_redirect_is_followed_and_no_other_protocol_is_offered(method: str) -> None:
    async with scripted_server(reply(307, Location="/elsewhere")) as server, transport_to(server.url) as transport:
        answer = await asked(transport, method)
        assert isinstance(answer, BrokerResponse)
        assert answer.status == 307
        [request] = server.requests
        assert {"upgrade", "http2-settings", "connection"}.isdisjoint(request.headers)
