"""A TCP proxy between a worker and a broker that holds, delays, repeats, drops or cuts HTTP requests.

    async with hop_proxy(simulator.port) as proxy:   # point the venue's URL at proxy.url
        proxy.hold(b"POST /orders ")                 # orders stay in the proxy; lookups still pass
        ...
        proxy.release()                              # deliver them now, even if their client has gone

A fault with `start` concerns the requests whose first line begins with it; by default all of them. All methods are
called in the event loop that runs the proxy.
"""

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal

from tests.support.serving import stop_accepting

Place = Literal["request", "answer"]

# The longest time that a delivery whose client has gone waits for the broker's answer; only a defect reaches it.
ANSWER_SECONDS = 60.0


class HopProxy:
    """Forwards everything until a fault is set; `heal` ends all faults."""

    def __init__(self, target_port: int, *, host: str = "127.0.0.1") -> None:
        self._host = host
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._may_pass = asyncio.Event()
        self._may_pass.set()
        self._held_start: bytes | None = None
        self._held_text = b""
        self._partition_start: bytes | None = None
        self._delay_seconds = 0.0
        self._duplicate_start: bytes | None = None
        self._remembered_start: bytes | None = None
        self._answers: dict[bytes, bytes] = {}
        """The first answer to each request that is remembered, by its client order id."""
        self._cut_once: dict[Place, bytes] = {}
        self._is_cut = False
        self._is_black = False
        self.requests: list[bytes] = []
        """Every request that was read from a client, in order of arrival."""
        self.delivered: list[bytes] = []
        """Every request that was written to the broker, copies included."""
        self.waiting = 0
        """How many requests are held at present."""
        self.swallowed = 0
        """How many requests a blackhole has dropped."""
        self.port = 0

    @property
    def url(self) -> str:
        """The address that clients use."""
        return f"http://{self._host}:{self.port}"

    def hold(self, start: bytes = b"", containing: bytes = b"") -> None:
        """Keep requests until `release`; they are delivered even if their client gives up meanwhile."""
        self._held_start, self._held_text = start, containing
        self._may_pass.clear()

    def partition(self, start: bytes = b"") -> None:
        """Keep requests until `release` or `heal`; those whose client reset the connection meanwhile are dropped.

        This is what a network does whose packets the kernel retransmits until the sender destroys the connection.
        """
        self._partition_start = start
        self._may_pass.clear()

    def release(self) -> None:
        """Deliver what is held or stuck in the partition, and forward again."""
        self._held_start = self._partition_start = None
        self._may_pass.set()

    def delay(self, seconds: float) -> None:
        """Deliver each request this much later."""
        self._delay_seconds = seconds

    def duplicate(self, start: bytes = b"") -> None:
        """Deliver each request twice, the copy over its own connection, as a proxy that retries."""
        self._duplicate_start = start

    def remember(self, start: bytes) -> None:
        """Answer a request with a known client order id as the first one, as a broker that keeps its answers.

        It lasts, whatever else is healed.
        """
        self._remembered_start = start

    def cut(self) -> None:
        """Reset every connection, and each new one at once."""
        self._is_cut = True
        self._reset_clients()

    def cut_next(self, place: Place, start: bytes = b"") -> None:
        """Reset the connection of the next request after half of the request, or of its answer, has passed."""
        self._cut_once[place] = start

    def blackhole(self) -> None:
        """Leave connections half-open: they stay established, and nothing passes in either direction.

        Requests and answers that arrive meanwhile are dropped. Connections that lost something stay dead after `heal`.
        """
        self._is_black = True

    def heal(self) -> None:
        """End every fault; what is held is delivered."""
        self._delay_seconds = 0.0
        self._duplicate_start = None
        self._cut_once = {}
        self._is_cut = self._is_black = False
        self.release()

    async def replay_last(self, start: bytes = b"") -> bytes:
        """Deliver a copy of the last delivered request over a new connection; returns the broker's answer."""
        return await self.replay(next(one for one in reversed(self.delivered) if one.startswith(start)))

    async def replay(self, request: bytes) -> bytes:
        """Deliver a copy of this request over a new connection; returns the broker's answer."""
        return await self._deliver_copy(request)

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._on_connection, self._host, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening, and close every connection."""
        if self._server is not None:
            await stop_accepting(self._server)
        self._reset_clients()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _reset_clients(self) -> None:
        for writer in list(self._clients):
            reset(writer)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            reset(writer)
            return
        self._clients.add(writer)
        self._spawn(_Client(self, reader, writer).run())

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # read, so that a broken connection raises no warning

    def _remembered_id(self, request: bytes) -> bytes:
        """The client order id in the body of a request whose answer is kept; empty for all others."""
        if self._remembered_start is None or not request.startswith(self._remembered_start):
            return b""
        found = re.search(rb'"client_order_id":"([^"]+)"', request)
        return b"" if found is None else found[1]

    async def _deliver_copy(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(self._host, self._target_port)
        try:
            self.delivered.append(request)
            writer.write(request)
            async with asyncio.timeout(ANSWER_SECONDS):
                return await _message(reader) or b""
        finally:
            writer.close()


class _Client:
    """One client's connection, and the connection to the broker that belongs to it."""

    def __init__(self, proxy: HopProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._broker: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._is_dead = False

    async def run(self) -> None:
        """Forward requests, one at a time, until the client closes."""
        try:
            while (request := await _message(self._reader)) is not None:
                self._proxy.requests.append(request)
                if not await self._forward(request):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._close()

    async def _forward(self, request: bytes) -> bool:
        """Deliver one request and pass its answer back; returns whether the connection goes on."""
        proxy = self._proxy
        if proxy._is_black or self._is_dead:
            self._is_dead = True
            proxy.swallowed += 1
            return True
        if not await self._wait(request):
            return False
        if self._hits("request", request):
            _, broker = await asyncio.open_connection(proxy._host, proxy._target_port)
            try:
                broker.write(request[: len(request) // 2])
                await broker.drain()
            finally:
                reset(broker)
            reset(self._writer)
            return False
        if proxy._duplicate_start is not None and request.startswith(proxy._duplicate_start):
            proxy._spawn(proxy._deliver_copy(request))
        client_id = proxy._remembered_id(request)
        answer = proxy._answers.get(client_id) or await self._exchange(request)
        if client_id:
            proxy._answers[client_id] = answer
        if proxy._is_black:
            self._is_dead = True
            return True
        if self._hits("answer", request):
            self._writer.write(answer[: len(answer) // 2])
            await self._writer.drain()
            reset(self._writer)
            return False
        self._writer.write(answer)
        await self._writer.drain()
        return bool(answer) and b"connection: close" not in request.partition(b"\r\n\r\n")[0].lower()

    async def _wait(self, request: bytes) -> bool:
        """Wait as the faults require; returns whether to deliver the request after that."""
        proxy = self._proxy
        is_held = proxy._held_start is not None and request.startswith(proxy._held_start)
        is_held = is_held and proxy._held_text in request
        is_stuck = proxy._partition_start is not None and request.startswith(proxy._partition_start)
        if is_held or is_stuck:
            proxy.waiting += 1
            try:
                await proxy._may_pass.wait()
            finally:
                proxy.waiting -= 1
            if is_stuck and not is_held and self._is_reset():
                return False
        if proxy._delay_seconds:
            await asyncio.sleep(proxy._delay_seconds)
        return True

    def _is_reset(self) -> bool:
        """Whether the client destroyed its connection, instead of closing it after its last byte."""
        return self._reader.exception() is not None or self._writer.transport.is_closing()

    async def _exchange(self, request: bytes) -> bytes:
        """The broker's answer, or nothing if the broker closed the connection without one."""
        proxy = self._proxy
        if self._broker is not None and self._broker[0].at_eof():
            self._broker[1].close()
            self._broker = None
        if self._broker is None:
            self._broker = await asyncio.open_connection(proxy._host, proxy._target_port)
        reader, writer = self._broker
        proxy.delivered.append(request)
        writer.write(request)
        await writer.drain()
        return await _message(reader) or b""

    def _hits(self, place: Place, request: bytes) -> bool:
        start = self._proxy._cut_once.get(place)
        if start is None or not request.startswith(start):
            return False
        del self._proxy._cut_once[place]
        return True

    def _close(self) -> None:
        if self._broker is not None:
            self._broker[1].close()
        self._writer.transport.abort()
        self._proxy._clients.discard(self._writer)


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST instead of FIN, and discard what the kernel has not sent yet."""
    connection = writer.transport.get_extra_info("socket")
    if connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _message(reader: asyncio.StreamReader) -> bytes | None:
    """One whole HTTP message with its body; None if the connection ended before it was complete."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length":
                return head + await reader.readexactly(int(value))
        return head
    return None


@asynccontextmanager
async def hop_proxy(target_port: int) -> AsyncGenerator[HopProxy, None]:
    """A running proxy to a port of this machine."""
    proxy = HopProxy(target_port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
