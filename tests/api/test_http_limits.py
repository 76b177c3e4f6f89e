"""Bounds of the HTTP server, seen from a client's socket."""

import asyncio
import json
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import pytest
import uvloop
from starlette.types import Receive, Scope, Send

from switchyard.domain.errors import StartRefused
from switchyard.entrypoints.http import protocol
from switchyard.entrypoints.http import server as http_server_module
from switchyard.entrypoints.http.protocol import HEAD_BYTES_MAX, BoundedHttpProtocol
from switchyard.entrypoints.http.server import HttpServer

PATIENCE_SECONDS = 60.0
SHORT_LIMIT_SECONDS = 0.4
PACE_SECONDS = 0.05
HELLO = b"GET /hello HTTP/1.1\r\nHost: test\r\n\r\n"


class Application:
    """Answers just enough to see what reaches an application."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.waiting = asyncio.Event()
        self.streams_ended = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["path"]:
            case "/stream":
                await self._stream(receive, send)
            case "/early":
                await answer(send, 401, b"early")
            case "/wait":
                self.waiting.set()
                await asyncio.to_thread(self.release.wait)
                await answer(send, 200, b"waited")
            case "/hang":
                self.waiting.set()
                await asyncio.Event().wait()
            case "/headers":
                await whole_body(receive)
                await answer(send, 200, json.dumps([name.decode() for name, _ in scope["headers"]]).encode())
            case _:
                body = await whole_body(receive)
                if body is not None:
                    await answer(send, 200, b"hello " + body)

    async def _stream(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await receive()
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": b"tick\n", "more_body": True})
            await asyncio.wait([gone], timeout=PACE_SECONDS)
        self.streams_ended += 1


async def whole_body(receive: Receive) -> bytes | None:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += bytes(message["body"])
        if not message["more_body"]:
            return body


async def answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def reason(self) -> str:
        document = json.loads(self.body)
        assert document["status"] == "REJECTED"
        assert document["message"]
        reason: str = document["reason"]
        return reason


def read_response(stream: BinaryIO) -> Response:
    status = int(stream.readline().split()[1])
    headers = {}
    while line := stream.readline().strip().decode():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Response(status, headers, stream.read(int(headers.get("content-length", 0))))


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        self.stream = self.socket.makefile("rb")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.stream.close()
        self.socket.close()

    def ask(self, request: bytes) -> Response:
        self.socket.sendall(request)
        return read_response(self.stream)

    def readable_within(self, seconds: float) -> bool:
        return bool(select.select([self.socket], [], [], seconds)[0])

    def send_until_answered(self, piece: bytes, *, pace_seconds: float = 0) -> None:
        """Send the piece again and again, until the server has something to say."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.readable_within(pace_seconds):
            assert time.monotonic() < deadline, "the server takes it for ever"
            try:
                self.socket.sendall(piece)
            except OSError:
                return

    def cannot_send(self) -> bool:
        try:
            self.socket.sendall(b"x")
        except OSError:
            return True
        return False

    def closed_by_server(self) -> bool:
        try:
            return self.stream.read() == b""
        except ConnectionResetError:
            return True


class Server(NamedTuple):
    port: int
    application: Application

    def still_serves(self) -> bool:
        with Client(self.port) as client:
            return client.ask(HELLO).status == 200


@pytest.fixture(scope="module", params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def running_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    application = Application()
    http_server = HttpServer(application, host="127.0.0.1", port=0)
    started = threading.Event()
    stopping = asyncio.Event()

    async def serve() -> None:
        await http_server.start()
        started.set()
        await stopping.wait()
        await http_server.stop(PATIENCE_SECONDS)

    with asyncio.Runner(loop_factory=request.param) as runner:
        loop = runner.get_loop()
        thread = threading.Thread(target=runner.run, args=(serve(),), daemon=True)
        thread.start()
        assert started.wait(PATIENCE_SECONDS)
        yield Server(http_server.port, application)
        loop.call_soon_threadsafe(stopping.set)
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


@pytest.fixture
def server(running_server: Server) -> Iterator[Server]:
    running_server.application.release.clear()
    yield running_server
    running_server.application.release.set()


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedHttpProtocol, "request_seconds_max", SHORT_LIMIT_SECONDS)


def poll(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        select.select([], [], [], 0.01)


def padded_head(size: int) -> bytes:
    head = b"GET /hello HTTP/1.1\r\nHost: test\r\nX-Padding: "
    return head + b"x" * (size - len(head) - 4) + b"\r\n\r\n"


def test_a_head_just_within_the_bound_is_served(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(padded_head(HEAD_BYTES_MAX)).status == 200


@pytest.mark.parametrize("size", [HEAD_BYTES_MAX + 64, 200_000])
def test_a_head_over_the_bound_is_refused_and_the_connection_closed(server: Server, size: int) -> None:
    with Client(server.port) as client:
        response = client.ask(padded_head(size))
        assert (response.status, response.reason) == (431, "HEADER_TOO_LARGE")
        assert client.closed_by_server()
    assert server.still_serves()


def test_many_small_headers_count_together(server: Server) -> None:
    with Client(server.port) as client:
        response = client.ask(b"GET /hello HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n")
        assert response.reason == "HEADER_TOO_LARGE"
    assert server.still_serves()


@pytest.mark.parametrize(
    ("start", "piece"),
    [(b"GET /hello HTTP/1.1\r\nX-Endless: ", b"x"), (b"GET /", b"x"), (b"", b"\r\n")],
    ids=["header", "path", "blank lines"],
)
def test_an_endless_head_is_refused(server: Server, start: bytes, piece: bytes) -> None:
    with Client(server.port) as client:
        client.socket.sendall(start)
        client.send_until_answered(piece * 65_536)
        assert read_response(client.stream).status == 431
        assert client.closed_by_server()
    assert server.still_serves()


def test_a_ten_megabyte_header_is_answered_even_to_a_client_that_sends_it_all_first(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LINGER_SECONDS", PATIENCE_SECONDS)
    with Client(server.port) as client:
        assert client.ask(padded_head(10_000_000)).status == 431
    assert server.still_serves()


def test_a_client_that_goes_on_sending_after_its_refusal_is_cut_off(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(b"nonsense\r\n\r\n").status == 400
        assert client.closed_by_server()
        poll(client.cannot_send)


def test_endless_trailers_are_refused(server: Server) -> None:
    with Client(server.port) as client:
        client.socket.sendall(b"POST /hello HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Endless: ")
        client.send_until_answered(b"x" * 65_536)
        assert read_response(client.stream).reason == "BODY_TOO_LARGE"
        assert client.closed_by_server()
    assert server.still_serves()


def test_trailers_do_not_become_headers(server: Server) -> None:
    with Client(server.port) as client:
        response = client.ask(
            b"POST /headers HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nAuthorization: late\r\n\r\n"
        )
        assert json.loads(response.body) == ["transfer-encoding"]


@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET /hello HT", b""),
        (b"GET /", b"x"),
        (b"GET /hello HTTP/1.1\r\nX-Slow: ", b"x"),
        (b"POST /hello HTTP/1.1\r\nContent-Length: 100000\r\n\r\n", b"x"),
        (b"POST /hello HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"POST /hello HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n", b""),
        (b"\r\n", b"\r\n"),
    ],
    ids=["silence", "slow path", "slow header", "slow body", "slow chunks", "nothing after 100", "blank lines"],
)
def test_a_request_that_arrives_too_slowly_is_refused(server: Server, start: bytes, piece: bytes) -> None:
    with Client(server.port) as client:
        client.socket.sendall(start)
        if b"Expect" in start:
            assert read_response(client.stream).status == 100
        client.send_until_answered(piece, pace_seconds=PACE_SECONDS)
        response = read_response(client.stream)
        assert (response.status, response.reason) == (408, "REQUEST_TIMEOUT")
        assert client.closed_by_server()
    assert server.still_serves()


@pytest.mark.usefixtures("short_limit")
def test_a_slow_second_request_on_a_connection_is_refused_too(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(HELLO).status == 200
        client.socket.sendall(b"GET /he")
        assert read_response(client.stream).status == 408
        assert client.closed_by_server()


@pytest.mark.usefixtures("short_limit")
def test_the_start_of_a_request_behind_another_is_timed_as_well(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(HELLO + b"GET /he").status == 200
        assert read_response(client.stream).status == 408


@pytest.mark.usefixtures("short_limit")
def test_a_connection_that_never_sends_anything_is_closed_without_an_answer(server: Server) -> None:
    with Client(server.port) as client:
        assert client.closed_by_server()
    assert server.still_serves()


@pytest.mark.usefixtures("short_limit")
def test_a_body_that_is_slow_after_its_answer_is_cut_off_without_a_second_answer(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(b"POST /early HTTP/1.1\r\nContent-Length: 100\r\n\r\n").body == b"early"
        assert client.closed_by_server()
    assert server.still_serves()


def test_a_body_that_ends_after_its_answer_leaves_the_connection_usable(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(b"POST /early HTTP/1.1\r\nContent-Length: 5\r\n\r\n12").body == b"early"
        assert client.ask(b"345" + HELLO).status == 200


@pytest.mark.usefixtures("short_limit")
def test_an_idle_connection_outlives_the_request_limit(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(HELLO).status == 200
        assert not client.readable_within(3 * SHORT_LIMIT_SECONDS)
        assert client.ask(HELLO).status == 200


@pytest.mark.usefixtures("short_limit")
def test_a_long_lived_stream_outlives_the_request_limit(server: Server) -> None:
    with Client(server.port) as client:
        began = time.monotonic()
        client.socket.sendall(b"GET /stream HTTP/1.1\r\n\r\n")
        assert read_response(client.stream).headers["content-type"] == "text/event-stream"
        while time.monotonic() - began < 3 * SHORT_LIMIT_SECONDS:
            assert client.stream.readline()


@pytest.mark.usefixtures("short_limit")
def test_half_a_request_does_not_cut_off_the_answer_before_it(server: Server) -> None:
    with Client(server.port) as client:
        client.socket.sendall(b"GET /wait HTTP/1.1\r\n\r\nGET /he")
        assert not client.readable_within(3 * SHORT_LIMIT_SECONDS)
        server.application.release.set()
        assert read_response(client.stream).body == b"waited"
        assert read_response(client.stream).status == 408


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET /hello HTTP/9.9\r\n\r\n",
        b"GET /hello HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET h\xc3\xa9llo HTTP/1.1\r\n\r\n",
        b"GET http:// HTTP/1.1\r\n\r\n",
        b"CONNECT example.test:443 HTTP/1.1\r\n\r\n",
        b"POST /hello HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /hello HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /hello HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_malformed_http_is_refused_as_json(server: Server, request_bytes: bytes) -> None:
    with Client(server.port) as client:
        response = client.ask(request_bytes)
        assert (response.status, response.reason) == (400, "INVALID_HTTP")
        assert response.headers["content-type"] == "application/json"
        assert client.closed_by_server()
    assert server.still_serves()


def test_nonsense_behind_a_request_does_not_pass_for_its_answer(server: Server) -> None:
    with Client(server.port) as client:
        client.socket.sendall(b"POST /wait HTTP/1.1\r\nContent-Length: 0\r\n\r\nnonsense\r\n\r\n")
        assert not client.readable_within(PACE_SECONDS)
        server.application.release.set()
        assert read_response(client.stream).body == b"waited"
        assert client.closed_by_server()


def test_two_requests_in_a_row_share_a_connection(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(b"POST /hello HTTP/1.1\r\nContent-Length: 3\r\n\r\none").body == b"hello one"
        assert client.ask(b"POST /hello HTTP/1.1\r\nContent-Length: 3\r\n\r\ntwo").body == b"hello two"


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    requests = [b"POST /hello HTTP/1.1\r\nContent-Length: 4\r\n\r\n%04d" % number for number in range(500)]
    with Client(server.port) as client:
        client.socket.sendall(b"".join(requests))
        assert [read_response(client.stream).body for _ in requests] == [b"hello %04d" % n for n in range(500)]


def test_a_request_that_offers_another_protocol_keeps_its_body(server: Server) -> None:
    with Client(server.port) as client:
        for _ in range(2):
            head = (
                b"POST /hello HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
            )
            assert client.ask(head + b"Content-Length: 5\r\n\r\norder").body == b"hello order"


def test_an_upgrade_to_a_web_socket_is_served_as_a_plain_request(server: Server) -> None:
    with Client(server.port) as client:
        assert client.ask(b"GET /hello HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n").status == 200


def test_a_stream_learns_that_its_client_left_even_if_more_requests_were_queued(server: Server) -> None:
    with Client(server.port) as client:
        ended_before = server.application.streams_ended
        client.socket.sendall(b"GET /stream HTTP/1.1\r\n\r\n" + HELLO)
        assert read_response(client.stream).status == 200
    poll(lambda: server.application.streams_ended > ended_before)


async def ask(port: int, request: bytes) -> bytes:
    """Everything that the server says until it closes the connection."""
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


async def test_too_many_connections_are_turned_away_and_the_others_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedHttpProtocol, "connections_max", 1)
    server = HttpServer(Application(), host="127.0.0.1", port=0)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    assert b"TOO_MANY_CONNECTIONS" in await ask(server.port, b"")
    writer.write(HELLO)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    await server.stop(PATIENCE_SECONDS)
    writer.close()


@pytest.mark.parametrize("request_bytes", [HELLO, b"POST /early HTTP/1.1\r\nContent-Length: 5\r\n\r\n12345"])
async def test_an_idle_connection_is_closed_in_the_end(request_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server_module, "KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(BoundedHttpProtocol, "request_seconds_max", SHORT_LIMIT_SECONDS)
    server = HttpServer(Application(), host="127.0.0.1", port=0)
    await server.start()
    assert (await ask(server.port, request_bytes)).count(b"HTTP/1.1") == 1
    await server.stop(PATIENCE_SECONDS)


async def test_stopping_finishes_the_requests_at_hand_and_ends_streams() -> None:
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


async def test_stopping_cuts_off_what_outlasts_the_grace() -> None:
    application = Application()
    server = HttpServer(application, host="127.0.0.1", port=0)
    await server.start()
    asked = asyncio.ensure_future(ask(server.port, b"GET /hang HTTP/1.1\r\n\r\n"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await application.waiting.wait()
        await server.stop(0.01)
        assert await asked == b""


async def test_an_address_in_use_is_refused_by_the_name_of_its_setting() -> None:
    first = HttpServer(Application(), host="127.0.0.1", port=0)
    await first.start()
    with pytest.raises(StartRefused, match=rf"SWITCHYARD_BACKOFFICE_PORT.*{first.port}.*in use"):
        second = HttpServer(Application(), host="127.0.0.1", port=first.port, port_setting="SWITCHYARD_BACKOFFICE_PORT")
        await second.start()
    await first.stop(PATIENCE_SECONDS)
    again = HttpServer(Application(), host="127.0.0.1", port=first.port)
    await again.start()
    await again.stop(PATIENCE_SECONDS)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
async def test_a_host_that_is_not_ours_is_refused_by_the_name_of_its_setting(host: str) -> None:
    with pytest.raises(StartRefused, match="SWITCHYARD_HOST"):
        await HttpServer(Application(), host=host, port=0).start()


async def test_the_server_leaves_signals_and_its_own_name_alone() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = HttpServer(Application(), host="localhost", port=0)
    await server.start()
    answered = await ask(server.port, b"GET /hello HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert answered.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"uvicorn" not in answered
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    await server.stop(PATIENCE_SECONDS)
