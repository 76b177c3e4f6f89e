"""Liveness of workers on PostgreSQL: session advisory locks, which the server releases when the session ends."""

import hashlib
from collections.abc import Sequence
from datetime import timedelta

import asyncpg

from switchyard.adapters.postgres.connection import DATABASE_ERRORS, Connection
from switchyard.adapters.postgres.persistent import PersistentConnection
from switchyard.adapters.postgres.reader import Reader
from switchyard.domain.errors import AlreadyRunning, JournalUnavailable
from switchyard.domain.ids import WorkerId
from switchyard.ports.journal import KERNEL_HOLD
from switchyard.ports.venue import SEND_LIMIT, TURN_LIMIT

# `dead` takes a lock for an instant only: a lock that is not free after this time belongs to another process.
LOCK_TIMEOUT_SECONDS = 1

# Shared mode, so that two concurrent checks do not take each other for the holder; released when the statement ends.
_DEAD = """
SELECT worker FROM unnest($1::text[], $2::bigint[]) AS asked (worker, key) WHERE pg_try_advisory_xact_lock_shared(key)
"""


class PostgresLiveness:
    """ports.liveness.Liveness: a worker holds its lock while its session lives.

    The session can end before the worker does, when the network or the server fails. Until the lock is taken again,
    other workers see the lock free and may treat the worker's unfinished rows as orphans. This is safe for the rows:
    their versions reject the late writer. It is safe for the venue, because an orphan is not resent before the worker
    has given up its own attempt (`send_lingers`) and the venue's acceptance window has passed after that.
    """

    def __init__(self, url: str, reader: Reader) -> None:
        self._url = url
        self._reader = reader
        self._held: dict[WorkerId, PersistentConnection] = {}

    @property
    def send_lingers(self) -> timedelta:
        """A free lock proves that the session ended, not the process: an attempt may take its longest time, and then
        the kernel may still deliver its last bytes."""
        return TURN_LIMIT + SEND_LIMIT + KERNEL_HOLD

    async def hold(self, worker: WorkerId) -> None:
        """Take the worker's lock until the process ends; raises AlreadyRunning when another process has it."""
        if worker in self._held:
            return

        async def take(connection: Connection) -> None:
            await connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'")
            while True:
                try:
                    await connection.execute("SELECT pg_advisory_lock($1)", lock_key(worker))
                    return
                except asyncpg.LockNotAvailableError:
                    if worker not in self._held:
                        raise AlreadyRunning(f"another process is running as worker {worker}") from None
                    # The server has not yet noticed that our former session ended. Until then, the worker counts as
                    # alive.

        connection = PersistentConnection(self._url, f"liveness of {worker}", take)
        try:
            await connection.open()
        except DATABASE_ERRORS as error:
            raise JournalUnavailable(f"the lock of worker {worker} cannot be taken: {error!r}") from error
        self._held[worker] = connection

    async def dead(self, workers: Sequence[WorkerId]) -> frozenset[WorkerId]:
        """Those of the named workers whose lock is free; never a worker of this process."""
        others = [worker for worker in workers if worker not in self._held]
        records = await self._reader.unconfirmed_rows(_DEAD, others, [lock_key(worker) for worker in others])
        return frozenset(record["worker"] for record in records)

    async def close(self) -> None:
        """Release the locks of this process."""
        for connection in self._held.values():
            await connection.close()


def lock_key(worker: WorkerId) -> int:
    """The worker's advisory lock key: the same 64-bit number in every process, unlike Python's `hash`."""
    return int.from_bytes(hashlib.sha256(worker.encode()).digest()[:8], "big", signed=True)
