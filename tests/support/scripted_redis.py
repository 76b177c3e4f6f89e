"""A TCP server that sends the same bytes in reply to every request: a Redis server that misbehaves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def scripted_redis(reply: bytes) -> AsyncIterator[str]:
    """Yields the server's URL; the server stops when the block ends."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while await reader.read(65536):
                writer.write(reply)
                await writer.drain()
        except OSError:
            pass  # the client closed the connection, as it should
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
