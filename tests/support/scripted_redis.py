"""A TCP server that sends the same bytes in reply to every request: a Redis server that misbehaves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.support.serving import serving


@asynccontextmanager
async def scripted_redis(reply: bytes) -> AsyncIterator[str]:
    """Yields the server's URL; the server stops when the block ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # the client closed the connection, as it should
            while await reader.read(65536):
                writer.write(reply)
                await writer.drain()

    async with serving(serve) as port:
        yield f"redis://127.0.0.1:{port}/0"
