"""HTTP requests that no client library would send, byte for byte, to a running gateway."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from tests.support.polling import DEADLINE_SECONDS


class RawResponse(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def reason(self) -> str:
        """The code of the error, in either form of an error's body."""
        document: dict[str, Any] = json.loads(self.body)
        return str(document.get("reason") or document.get("error"))


class RawConnection:
    """One connection to a gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, *lines: str, body: bytes = b"") -> RawResponse:
        """Send a head of these lines and a body; returns the whole response."""
        self.writer.write("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body)
        return await self.response()

    async def response(self) -> RawResponse:
        async with asyncio.timeout(DEADLINE_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            content = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return RawResponse(int(head[0].split()[1]), headers, content)

    async def is_closed(self) -> bool:
        """Wait for the server to close the connection."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True


@asynccontextmanager
async def connection(url: str, source: str | None = None) -> AsyncIterator[RawConnection]:
    """Open a connection, from a loopback address of its own if `source` names one."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0) if source else None)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def ask(url: str, *lines: str, body: bytes = b"", source: str | None = None) -> RawResponse:
    """Send one request on a connection of its own."""
    async with connection(url, source) as opened:
        return await opened.ask(*lines, body=body)
