"""A loopback server for tests that closes every connection it has accepted."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
# Turns of the event loop from a connection that it accepts to the server's callback: the task that makes the transport,
# the callback, and one more, because ours may come before it in its turn.
ACCEPT_TURNS = 3


async def stop_accepting(server: asyncio.Server) -> None:
    """Close the server; return when each connection that it has accepted has reached its callback."""
    server.close()
    for _ in range(ACCEPT_TURNS):
        await asyncio.sleep(0)


@asynccontextmanager
async def serving(serve: Serve, port: int = 0) -> AsyncGenerator[int, None]:
    """Serve each connection in a task of its own until the block ends; yields the port, any free one for 0.

    A client may connect just before the end, and a task that is cancelled before its first line runs no `finally`:
    so the connections are closed here.
    """
    tasks: set[asyncio.Task[None]] = set()

    def end(writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(partial(end, writer))

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await stop_accepting(server)
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
