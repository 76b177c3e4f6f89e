"""An HTTP server for tests that replies to each request with the next item of a script."""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import msgspec

from tests.support.serving import serving

Reply = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


class Request(msgspec.Struct, frozen=True):
    """A request that the server received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def reply(status: int, body: object = b"", **headers: str) -> bytes:
    """A complete HTTP response; a body that is not bytes is encoded as JSON."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close the connection without a reply."""
    writer.close()


async def reset(writer: asyncio.StreamWriter) -> None:
    """Reset the connection, as a crashed host does."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def never_reply(writer: asyncio.StreamWriter) -> None:
    """Keep the connection open without a reply."""
    await asyncio.Event().wait()


def then_hang_up(beginning: bytes) -> Reply:
    """Send the beginning of a response, then close the connection."""

    async def run(writer: asyncio.StreamWriter) -> None:
        writer.write(beginning)
        await writer.drain()
        writer.close()

    return run


class ScriptedServer:
    """Sends its replies in order, over all connections, and repeats the last one."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = deque(replies)
        self.requests: list[Request] = []
        self.arrived = asyncio.Event()
        """Set by the first request."""
        self.greeting = b""
        """What each new connection gets before any request."""
        self.connections = 0
        self.url = ""

    @property
    def posted(self) -> list[Any]:
        """The JSON bodies of the POSTs, in order."""
        return [msgspec.json.decode(request.body) for request in self.requests if request.method == "POST"]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.write(self.greeting)
        try:
            while not writer.is_closing():
                self.requests.append(await _read_request(reader))
                self.arrived.set()
                next_reply = self._replies.popleft() if len(self._replies) > 1 else self._replies[0]
                if isinstance(next_reply, bytes):
                    writer.write(next_reply)
                    await writer.drain()
                    if self.requests[-1].headers.get("connection") == "close":
                        writer.close()
                else:
                    await next_reply(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass


async def _read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Request(method, path, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


@asynccontextmanager
async def scripted_server(*replies: Reply) -> AsyncIterator[ScriptedServer]:
    """Runs the server on loopback until the block ends."""
    script = ScriptedServer(*replies)
    async with serving(script.serve) as port:
        script.url = f"http://127.0.0.1:{port}"
        yield script
