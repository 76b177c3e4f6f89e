"""Procrastinate: `fill ROWS` queues jobs, `work` runs one worker until it is stopped.

It fetches and finishes each job separately; the only setting is the concurrency.
"""

import sys

import uvloop
from procrastinate import App, PsycopgConnector
from procrastinate.types import JSONDict

from bench.drain.jobs import NAME, PAYLOAD, chunks, database_url

# Tested: 1 (its default), 4, 10 and 30. Jobs are fetched one at a time, so few run concurrently.
CONCURRENCY = 4


def application() -> App:
    # One connection per job, one to fetch and one for notifications.
    size = CONCURRENCY + 2
    return App(connector=PsycopgConnector(conninfo=database_url(), min_size=size, max_size=size))


async def fill(rows: int) -> None:
    app = application()
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for numbers in chunks(rows):
            orders: list[JSONDict] = [{"order": PAYLOAD} for _ in numbers]
            await app.configure_task(NAME).batch_defer_async(*orders)


async def work() -> None:
    app = application()

    @app.task(name=NAME)
    async def send(order: str) -> None:
        """Do nothing, like the null venue."""

    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY)


if __name__ == "__main__":
    uvloop.run(fill(int(sys.argv[2])) if sys.argv[1] == "fill" else work())
