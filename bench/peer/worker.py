"""The peer's sender: a PgQueuer worker that sends each order to a venue in the same process, until it is stopped.

One job is one order. The venue answers and reports the fill at once; each step is one update of the order.
"""

import os

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

JOB = "send"
# As for the drain: larger batches are no faster.
BATCH_SIZE = 500
# As many as the API has: each update waits for its commit, and more of them share a flush.
CONNECTIONS = 20

MARK_SENDING = "UPDATE orders SET status = 'SENDING', updated_at = clock_timestamp() WHERE order_id = $1"
MARK_SENT = (
    "UPDATE orders SET status = 'WORKING', venue_order_id = $2, updated_at = clock_timestamp() WHERE order_id = $1"
)
MARK_FILLED = """
    UPDATE orders SET status = 'FILLED', filled_qty = $2, updated_at = clock_timestamp() WHERE order_id = $1
"""


class Venue:
    """Fills every order at once, like Switchyard's null venue."""

    async def send(self, order_id: str) -> str:
        """The venue's id of the order."""
        return f"v-{order_id}"

    async def report(self, order_id: str) -> int:
        """The quantity that was filled."""
        return 1000


async def install(pool: asyncpg.Pool) -> None:
    """Create the tables of PgQueuer, with the autovacuum settings that it recommends."""
    queries = Queries(AsyncpgPoolDriver(pool))
    await queries.install()
    await queries.optimize_autovacuum()


async def work() -> None:
    url = os.environ["PEER_DATABASE_URL"]
    async with asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        worker = PgQueuer(AsyncpgPoolDriver(pool))
        venue = Venue()

        @worker.entrypoint(JOB)
        async def send(job: Job) -> None:
            assert job.payload is not None, "every job names its order"
            order_id = job.payload.decode()
            await pool.execute(MARK_SENDING, order_id)
            await pool.execute(MARK_SENT, order_id, await venue.send(order_id))
            await pool.execute(MARK_FILLED, order_id, await venue.report(order_id))

        await worker.run(batch_size=BATCH_SIZE)


if __name__ == "__main__":
    uvloop.run(work())
