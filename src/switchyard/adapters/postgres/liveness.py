"""Which workers are alive, proven by advisory locks that the server drops with their sessions."""

import hashlib
from collections.abc import Sequence
from datetime import timedelta

import asyncpg

from switchyard.adapters.postgres.connection import FAILED, Connection, Reader
from switchyard.adapters.postgres.standing import StandingConnection
from switchyard.domain.errors import AlreadyRunning, JournalUnavailable
from switchyard.domain.ids import WorkerId
from switchyard.ports.venue import SEND_LIMIT, TURN_LIMIT

# Whoever only asks `dead` has the lock for a moment; one that is not free by then has a holder.
PATIENCE_SECONDS = 1

# Tried in shared mode, so that two who ask at once do not take each other for the holder; released with the statement.
_DEAD = """
SELECT worker FROM unnest($1::text[], $2::bigint[]) AS asked (worker, key) WHERE pg_try_advisory_xact_lock_shared(key)
"""


class PostgresLiveness:
    """ports.queries.Liveness: a worker holds its lock for as long as its session lives.

    The session can end before the worker does, when the network or the server fails. Until the lock is taken again the
    others rightly see nobody and may treat the worker's unfinished rows as orphans. That stays harmless for the rows,
    whose versions turn the late writer away, and for the venue as long as an orphan's order is not sent again before
    the worker has given up its own attempt (`send_lingers`) and the venue's acceptance window has passed after that.
    """

    def __init__(self, url: str, reader: Reader) -> None:
        self._url = url
        self._reader = reader
        self._held: dict[WorkerId, StandingConnection] = {}

    @property
    def send_lingers(self) -> timedelta:
        """As long as any attempt may take: a free lock proves that the session is gone, not the process."""
        return TURN_LIMIT + SEND_LIMIT

    async def hold(self, worker: WorkerId) -> None:
        """Be alive under this name until the process ends; raises AlreadyRunning when another process is."""
        if worker in self._held:
            return

        async def take(connection: Connection) -> None:
            await connection.execute(f"SET lock_timeout = '{PATIENCE_SECONDS}s'")
            while True:
                try:
                    await connection.execute("SELECT pg_advisory_lock($1)", lock_key(worker))
                    return
                except asyncpg.LockNotAvailableError:
                    if worker not in self._held:
                        raise AlreadyRunning(f"another process is running as worker {worker}") from None
                    # Our own former session, which the server has not missed yet: so far we still count as alive.

        connection = StandingConnection(self._url, f"liveness of {worker}", take)
        try:
            await connection.open()
        except FAILED as error:
            raise JournalUnavailable(f"the worker's lock cannot be taken: {error!r}") from error
        self._held[worker] = connection

    async def dead(self, workers: Sequence[WorkerId]) -> frozenset[WorkerId]:
        """Those of the named workers whose lock is free; never one of this process."""
        asked = [worker for worker in workers if worker not in self._held]
        found = await self._reader.rows(_DEAD, asked, [lock_key(worker) for worker in asked])
        return frozenset(record["worker"] for record in found)

    async def close(self) -> None:
        """Give the names up."""
        for connection in self._held.values():
            await connection.close()


def lock_key(worker: WorkerId) -> int:
    """The same 64-bit number in every process; Python's own `hash` differs from one to the next."""
    return int.from_bytes(hashlib.sha256(worker.encode()).digest()[:8], "big", signed=True)
