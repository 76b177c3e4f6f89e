"""A loopback server for tests that closes every connection it has accepted."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncGenerator[int, None]:
    """Serve each connection in a task of its own until the block ends; yields the port.

    A client may connect just before the end, and a task that is cancelled before its first line runs no `finally`:
    so the connections are closed here.
    """
    tasks: set[asyncio.Task[None]] = set()

    def end(writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not server.is_serving():
            writer.close()  # accepted just before the end
            return
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(partial(end, writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
