"""PgQueuer: `fill ROWS` queues jobs, `work` runs one worker until it is stopped.

Configured as its tuning guide recommends for many short jobs: an asyncpg pool, its autovacuum settings, large batches,
no limit on tasks. All tables are logged, which is its default: a crash must not lose a job.
"""

import sys

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.drain.jobs import NAME, PAYLOAD, chunks, database_url

# Tested: 10 (its default) has a quarter of the speed of 500, 100 three quarters; 1,000 and 2,000 are no faster.
BATCH_SIZE = 500
# One connection for notifications; the others fetch and finish jobs concurrently.
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
            """Do nothing, like the null venue."""

        await worker.run(batch_size=BATCH_SIZE)


if __name__ == "__main__":
    uvloop.run(fill(int(sys.argv[2])) if sys.argv[1] == "fill" else work())
