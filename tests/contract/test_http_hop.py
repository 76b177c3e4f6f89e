"""The hop to a broker: no byte is sent after the request was given up, none twice, and none through another hop."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Literal

import pytest
from aiohappyeyeballs import AddrInfoType

from switchyard.venue import transport as transport_module
from switchyard.venue.bridge import RESPONSE_SECONDS
from switchyard.venue.transport import (
    UNACKNOWLEDGED_SECONDS,
    BrokerResponse,
    Exchange,
    Lost,
    NotSent,
    Pool,
    Transport,
    _new_socket,
)
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.scripted_server import Reply, hang_up, never_reply, reply, reset, scripted_server

LOCAL = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))
# More than the kernel's buffers of both ends hold at SMALL, so that the rest waits in this process.
LARGE = b"x" * 900_000
SMALL = 8192


# How a request gets its connection: one that carried another request, a new one, or one that was opened ahead of it.
Form = Literal["reused", "new", "spare"]
FORMS: tuple[Form, ...] = ("reused", "new", "spare")


def spares_of(transport: Transport) -> int:
    return len(transport._waiting)


class NotingTransport(Transport):
    """Counts the connections on which something unasked arrived."""

    def __init__(self, url: str, pool: Pool) -> None:
        self.noted = 0
        super().__init__(url, pool, note_unasked=self._count)

    def _count(self) -> None:
        self.noted += 1


@asynccontextmanager
async def transport_to(url: str, form: Form = "new") -> AsyncIterator[NotingTransport]:
    spares = 2 if form == "spare" else 0
    transport = NotingTransport(url, Pool(4, spares, spares, idle_seconds=60.0, reuses=form == "reused"))
    await transport.start()
    await until(lambda: spares_of(transport) == spares)
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
@pytest.mark.parametrize("form", ["new", "spare"])
async def test_what_waits_in_the_process_is_discarded_when_a_request_is_given_up(
    form: Form, is_cancelled: bool, monkeypatch: pytest.MonkeyPatch
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
        async with asyncio.timeout(20), transport_to(f"http://{address}", form) as transport:
            spares = [(await loop.sock_accept(listener))[0] for _ in range(spares_of(transport))]
            sending = asyncio.create_task(asked(transport, "POST", LARGE))
            peer = spares[-1] if spares else (await loop.sock_accept(listener))[0]
            with ExitStack() as connections:
                for each in (*spares, peer):
                    connections.enter_context(each)
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
@pytest.mark.parametrize("form", FORMS)
async def test_no_request_is_repeated_below_the_caller(form: Form, lost: Reply, method: str) -> None:
    replies = reply(200, {}), lost, reply(200, {})
    async with scripted_server(*replies) as server, transport_to(server.url, form) as transport:
        assert isinstance(await asked(transport, method), BrokerResponse)
        assert loss_of(await asked(transport, method)) == "NETWORK_DISCONNECTED"
        assert len(server.requests) == 2
        if form != "spare":
            assert server.connections == (1 if form == "reused" else 2)


async def test_a_connection_is_not_reused_after_a_request_was_given_up() -> None:
    async with scripted_server(never_reply, reply(200, {})) as server, transport_to(server.url, "reused") as transport:
        assert loss_of(await asked(transport)) == "NETWORK_TIMEOUT"
        assert isinstance(await asked(transport), BrokerResponse)
        assert server.connections == 2


async def test_by_default_a_connection_carries_one_request_and_says_so() -> None:
    async with scripted_server(reply(200, {})) as server, transport_to(server.url) as transport:
        for _ in range(3):
            assert isinstance(await asked(transport), BrokerResponse)
        assert server.connections == 3
        assert {request.headers["connection"] for request in server.requests} == {"close"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("awaits_end", [False, True])
async def test_only_a_response_whose_connection_has_ended_is_the_only_one(form: Form, awaits_end: bool) -> None:
    async with scripted_server(reply(403, {})) as server, transport_to(server.url, form) as transport:
        for _ in range(2):
            answer = await transport.ask(
                "GET", "/orders", response_seconds=20.0, bytes_max=1000, awaits_end=lambda *_: awaits_end
            )
            assert isinstance(answer, BrokerResponse)
            assert answer.is_only_response == (awaits_end and form != "reused")


class Listener:
    """A broker that accepts connections, and does with them what the test says."""

    def __init__(self, listening: socket.socket, connections: ExitStack) -> None:
        self.listening = listening
        self._connections = connections
        listening.setblocking(False)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    async def accept(self) -> socket.socket:
        async with asyncio.timeout(60):
            accepted, _ = await asyncio.get_running_loop().sock_accept(self.listening)
        return self._connections.enter_context(accepted)

    async def answer(self, connection: socket.socket, response: bytes) -> bytes:
        """Read the request and answer it; returns the request."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(60):
            request = await loop.sock_recv(connection, 65536)
            if request:
                await loop.sock_sendall(connection, response)
        return request

    async def answer_all(self, response: bytes) -> None:
        """Answer the first request on each further connection."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self.answer(await self.accept(), response))


@contextmanager
def a_listener() -> Iterator[Listener]:
    with ExitStack() as connections, socket.create_server(("127.0.0.1", 0)) as listening:
        yield Listener(listening, connections)


def has_ended(connection: socket.socket) -> bool:
    """Whether the other end has closed or reset the connection."""
    try:
        while connection.recv(65536, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


async def test_a_request_goes_on_a_connection_that_was_opened_ahead_and_is_replaced() -> None:
    with a_listener() as broker:
        async with transport_to(broker.url, "spare") as transport:
            spares = [await broker.accept() for _ in range(2)]
            asking = asyncio.create_task(asked(transport))
            assert (await broker.answer(spares[-1], reply(200, {}))).startswith(b"GET /orders ")
            assert isinstance(await asking, BrokerResponse)
            await until(lambda: has_ended(spares[-1]))
            await broker.accept()
            assert not has_ended(spares[0])


UNASKED = [reply(429, {"error": "RATE_LIMITED"}), reply(403, {"error": "FORBIDDEN"}), b"H", b""]


def speak(connection: socket.socket, unasked: bytes) -> None:
    """Send something that was not asked for, or the end of the connection."""
    if unasked:
        connection.sendall(unasked)
    else:
        connection.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("unasked", UNASKED, ids=["429", "403", "a byte", "the end"])
@pytest.mark.parametrize("is_in_kernel", [True, False])
async def test_a_spare_connection_is_discarded_if_something_arrives_before_the_request(
    unasked: bytes, is_in_kernel: bool
) -> None:
    with a_listener() as broker:
        async with transport_to(broker.url, "spare") as transport:
            protocols = list(transport._waiting)
            for spare in [await broker.accept() for _ in protocols]:
                speak(spare, unasked)
            if not is_in_kernel:
                await until(lambda: all(protocol.ended.done() for protocol in protocols))
                assert transport.noted == (len(protocols) if unasked else 0)
            answering = asyncio.create_task(broker.answer_all(reply(200, {})))
            answer = await asked(transport)
            assert isinstance(answer, BrokerResponse)
            assert answer.status == 200
            answering.cancel()


@pytest.mark.parametrize("unasked", UNASKED, ids=["429", "403", "a byte", "the end"])
async def test_nothing_is_sent_on_a_connection_on_which_something_has_arrived(
    unasked: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module.Transport, "_take_waiting", lambda self: self._waiting.pop())
    with a_listener() as broker:
        async with transport_to(broker.url, "spare") as transport:
            protocols = list(transport._waiting)
            spares = [await broker.accept() for _ in protocols]
            for spare in spares:
                speak(spare, unasked)
            await until(lambda: all(protocol.ended.done() for protocol in protocols))
            assert isinstance(await asked(transport), NotSent)
            assert transport.noted == (len(spares) if unasked else 0)
            assert has_got_nothing(spares[-1])


def has_got_nothing(connection: socket.socket) -> bool:
    """Whether no request has arrived on the connection."""
    try:
        return connection.recv(1, socket.MSG_DONTWAIT) == b""
    except (ConnectionResetError, BlockingIOError):
        return True


@pytest.mark.parametrize("unasked", UNASKED, ids=["429", "403", "a byte", "the end"])
async def test_what_arrives_on_a_pooled_connection_is_noted_although_the_pool_drops_it(unasked: bytes) -> None:
    with a_listener() as broker:
        async with transport_to(broker.url, "reused") as transport:
            asking = asyncio.create_task(asked(transport))
            connection = await broker.accept()
            await broker.answer(connection, reply(200, {}))
            assert isinstance(await asking, BrokerResponse)
            speak(connection, unasked)
            speak(connection, b"")
            await until(lambda: has_ended(connection))
            assert transport.noted == bool(unasked)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n2\r\n{}\r\n0\r\nA: 1\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
WHOLE = {
    "plain": reply(200, {}),
    "empty": reply(204),
    "chunked": CHUNKED,
    "after an interim one": INTERIM + reply(200, {}),
    "large": reply(200, LARGE),
}
BEHIND = {"nothing": b"", "a byte": b"H", "garbage": b"?\r\n\r\n", "an interim one": INTERIM, "another": reply(429)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("whole", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
async def test_what_is_behind_a_response_is_noted_and_a_whole_response_is_not(
    behind: bytes, whole: bytes, form: Form
) -> None:
    async with scripted_server(whole + behind) as server, transport_to(server.url, form) as transport:
        await transport.ask("GET", "/orders", response_seconds=5.0, bytes_max=len(LARGE))
        await until(lambda: bool(transport.noted) or not behind)
        assert transport.noted == bool(behind)


async def test_spare_connections_are_replaced_before_they_are_too_old() -> None:
    with a_listener() as broker:
        transport = Transport(broker.url, Pool(4, spares_min=1, spares_max=4, idle_seconds=1.5))
        await transport.start()
        try:
            first = await broker.accept()
            second = await broker.accept()
            await until(lambda: has_ended(first))
            assert not has_ended(second)
        finally:
            await transport.close()
        await until(lambda: has_ended(second))


async def test_a_broker_that_takes_no_connections_loses_its_spare_ones() -> None:
    """A request on a new connection is then proven unsent; on a spare one, whose peer is gone, it would be in doubt."""
    with a_listener() as broker:
        async with transport_to(broker.url, "spare") as transport:
            spares = [await broker.accept() for _ in range(2)]
            broker.listening.close()
            await transport._add_spare()
            assert isinstance(await asked(transport), NotSent)
            await until(lambda: all(map(has_ended, spares)))


async def test_a_lost_request_takes_the_spare_connections_with_it() -> None:
    with a_listener() as broker:
        async with transport_to(broker.url, "spare") as transport:
            spares = [await broker.accept() for _ in range(2)]
            assert loss_of(await asked(transport)) == "NETWORK_TIMEOUT"
            await until(lambda: all(map(has_ended, spares)))


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
        assert {"upgrade", "http2-settings"}.isdisjoint(request.headers)
        assert request.headers["connection"] == "close"
