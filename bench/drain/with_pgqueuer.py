"""PgQueuer: `fill ROWS` queues jobs, `work` runs one worker until it is ended.

Set up as its tuning guide advises for many short jobs: asyncpg with a pool, its own autovacuum settings, large batches,
no limit on tasks. All tables are logged, its default: a crash must not lose a job here either.
"""

import sys

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.drain.jobs import NAME, PAYLOAD, chunks, database_url

# Tried: 10 (its default), 100, 500, 1,000 and 2,000; a quarter of the speed, three quarters, and three times the same.
BATCH_SIZE = 500
# One for the notifications; the others fetch and finish at the same time.
CONNECTIONS = 8


async def fill(rows: int) -> None:
    async with asyncpg.create_pool(database_url(), min_size=1, max_size=1) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        await queries.install()
        await queries.optimize_autovacuum()
        for numbers in chunks(rows):
            count = len(numbers)
            await queries.enqueue([NAME] * count, [PAYLOAD.encode()] * count, [0] * count)


async def work() -> None:
    async with asyncpg.create_pool(database_url(), min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        worker = PgQueuer(AsyncpgPoolDriver(pool))

        @worker.entrypoint(NAME)
        async def send(job: Job) -> None:
            """Do nothing, as the null venue does."""

        await worker.run(batch_size=BATCH_SIZE)


if __name__ == "__main__":
    uvloop.run(fill(int(sys.argv[2])) if sys.argv[1] == "fill" else work())
