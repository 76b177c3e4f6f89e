"""A server that says the same to everything, whatever it is asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def scripted_redis(answer: bytes) -> AsyncIterator[str]:
    """Its address, as long as the block lasts."""
    talking: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talking.add(task)
        try:
            while await reader.read(65536):
                writer.write(answer)
                await writer.drain()
        except OSError:
            pass  # the other side hung up on us, as it should
        finally:
            writer.close()
            talking.discard(task)

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()
        for task in talking:
            task.cancel()
        if talking:
            await asyncio.wait(talking)
