"""The HTTP server with a minimal application, and a client on a plain socket."""

import asyncio
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

from starlette.types import Receive, Scope, Send

from switchyard.entrypoints.http.transport.server import HttpServer

PATIENCE_SECONDS = 60.0
SHORT_LIMIT_SECONDS = 0.4
PACE_SECONDS = 0.05
HELLO = b"GET /hello HTTP/1.1\r\nHost: test\r\n\r\n"


class Application:
    """A minimal application: each path shows one behaviour of the server."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.waiting = asyncio.Event()
        self.streams_ended = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["path"]:
            case "/stream":
                await self._stream(receive, send)
            case "/early":
                await respond(send, 401, b"early")
            case "/wait":
                self.waiting.set()
                await asyncio.to_thread(self.release.wait)
                await respond(send, 200, b"waited")
            case "/hang":
                self.waiting.set()
                await asyncio.Event().wait()
            case "/headers":
                await whole_body(receive)
                await respond(send, 200, json.dumps([name.decode() for name, _ in scope["headers"]]).encode())
            case _:
                body = await whole_body(receive)
                if body is not None:
                    await respond(send, 200, b"hello " + body)

    async def _stream(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await receive()
        disconnect = asyncio.ensure_future(receive())
        while not disconnect.done():
            await send({"type": "http.response.body", "body": b"tick\n", "more_body": True})
            await asyncio.wait([disconnect], timeout=PACE_SECONDS)
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


async def respond(send: Send, status: int, body: bytes) -> None:
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
        """Send the piece repeatedly until the server responds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.readable_within(pace_seconds):
            assert time.monotonic() < deadline, "the server reads without a limit"
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


@contextmanager
def serving_in_a_thread(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[Server]:
    """Run a server on its own event loop, so that a test can use blocking sockets."""
    application = Application()
    http_server = HttpServer(application, host="127.0.0.1", port=0)
    started = threading.Event()
    stopping = asyncio.Event()

    async def serve() -> None:
        await http_server.start()
        started.set()
        await stopping.wait()
        await http_server.stop(PATIENCE_SECONDS)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        loop = runner.get_loop()
        thread = threading.Thread(target=runner.run, args=(serve(),), daemon=True)
        thread.start()
        assert started.wait(PATIENCE_SECONDS)
        try:
            yield Server(http_server.port, application)
        finally:
            loop.call_soon_threadsafe(stopping.set)
            thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def poll(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        select.select([], [], [], 0.01)
