"""Workers on PostgreSQL: session locks prove that one lives and owns its lanes; the leases of relays."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec

from switchyard.adapters.postgres.connection import DATABASE_ERRORS, Connection, PersistentConnection, connect
from switchyard.adapters.postgres.reader import Reader
from switchyard.adapters.tables import SqlRelayLeases
from switchyard.domain.errors import AlreadyRunning, JournalUnavailable
from switchyard.domain.ids import VenueName, WorkerId
from switchyard.ports.clock import Clock
from switchyard.ports.journal import KERNEL_HOLD
from switchyard.ports.outbox import NOTHING_DECLARED, LaneShare, difference
from switchyard.ports.venue import SEND_LIMIT, TURN_LIMIT

# `dead` takes a lock for an instant only: a lock that is not free after this time belongs to another process.
LOCK_TIMEOUT_SECONDS = 1

# Shared mode, so that two concurrent checks do not take each other for the holder; released when the statement ends.
_DEAD = """
SELECT worker FROM unnest($1::text[], $2::bigint[]) AS asked (worker, key) WHERE pg_try_advisory_xact_lock_shared(key)
"""


class PostgresLiveness:
    """ports.journal.Liveness: a worker holds its lock while its session lives.

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


# A worker that has not called for this long is paused or disconnected: the others take its lanes, though its process
# may still run.
SILENCE_MAX = timedelta(seconds=10)

_HOLD = """
SELECT lanes, share, workers, beats, other_worker, other_declared::text FROM hold_lanes(
    for_worker => $1, worker_lock_key => $2, given_up => $3, silent_workers => $4, silent_beats => $5,
    own_declared => $6::text::jsonb
)
"""


class PostgresLanes:
    """ports.outbox.Lanes among the workers of one database."""

    def __init__(self, reader: Reader, clock: Clock, silence_max: timedelta = SILENCE_MAX) -> None:
        self._reader = reader
        self._clock = clock
        self._silence_seconds_max = silence_max.total_seconds()
        self._beats: dict[str, tuple[int, float]] = {}
        """The last beat of each worker, and the monotonic time at which it was first seen here."""

    async def hold(
        self, worker: WorkerId, given_up: Sequence[int], declared: Mapping[VenueName, str] = NOTHING_DECLARED
    ) -> LaneShare:
        """Register the worker, release the lanes it gives up, and take free lanes up to its fair share."""
        now = self._clock.monotonic()
        silent = [
            (other, beat)
            for other, (beat, seen_at) in self._beats.items()
            if other != worker and now - seen_at > self._silence_seconds_max
        ]
        workers, beats = [other for other, _ in silent], [beat for _, beat in silent]
        own = msgspec.json.encode(dict(declared)).decode()
        [record] = await self._reader.unconfirmed_rows(_HOLD, worker, lock_key(worker), given_up, workers, beats, own)
        self._note_beats(record["workers"], record["beats"])
        if record["other_worker"] is not None:
            raise difference(record["other_worker"], msgspec.json.decode(record["other_declared"]), declared)
        return LaneShare(frozenset(record["lanes"]), record["share"])

    def _note_beats(self, workers: Sequence[str], beats: Sequence[int]) -> None:
        now = self._clock.monotonic()
        before = self._beats
        self._beats = {
            worker: before[worker] if worker in before and before[worker][0] == beat else (beat, now)
            for worker, beat in zip(workers, beats, strict=True)
        }


_TAKE_SESSION = "SELECT pg_try_advisory_lock($1)"
_NAME_HOLDER = """
INSERT INTO venue_sessions (venue, worker) VALUES ($1, $2) ON CONFLICT (venue) DO UPDATE SET worker = excluded.worker
"""
# The server frees the lock of a machine that has vanished after 5 + 3 * 2 s. The kernel of a stopped holder answers.
_PROBE_HOLDER = "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3"
# A connection that does not answer for so long is taken for lost.
SESSION_PING_SECONDS = 1.0


class PostgresVenueSessions:
    """ports.outbox.VenueSessions: an advisory lock on a connection of its own, and the holder's name in a row.

    A killed holder frees the lock with its connection; one that is stopped keeps it.
    """

    def __init__(self, url: str, reader: Reader) -> None:
        self._url = url
        self._reader = reader
        self._held: dict[VenueName, Connection] = {}

    async def take(self, venue: VenueName, worker: WorkerId) -> bool:
        """Take the lock, then name the holder: from then on an attempt of the one before is a conflict."""
        if venue in self._held:
            return True
        try:
            connection = await connect(self._url)
            try:
                if not await connection.fetchval(_TAKE_SESSION, session_key(venue)):
                    await connection.close(timeout=SESSION_PING_SECONDS)
                    return False
                await connection.execute(_PROBE_HOLDER)
                await connection.execute(_NAME_HOLDER, venue, worker)
            except BaseException:
                connection.terminate()
                raise
        except DATABASE_ERRORS as error:
            raise JournalUnavailable(f"the session of {venue} cannot be taken: {error!r}") from error
        self._held[venue] = connection
        return True

    async def lost(self, venue: VenueName) -> None:
        """Return once the connection ends or does not answer: the lock may be free then."""
        connection, ended = self._held[venue], asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        while not connection.is_closed():
            try:
                async with asyncio.timeout(SESSION_PING_SECONDS):
                    await ended.wait()
                return
            except TimeoutError:
                pass
            try:
                await connection.execute("SELECT 1", timeout=SESSION_PING_SECONDS)
            except DATABASE_ERRORS:
                return

    async def release(self, venue: VenueName) -> None:
        """End the connection, and with it the lock."""
        connection = self._held.pop(venue, None)
        if connection is not None:
            connection.terminate()

    async def share(self, venue: VenueName) -> None:
        """Remove the name of a holder, as after a change of the adapter."""
        await self._reader.unconfirmed_rows("DELETE FROM venue_sessions WHERE venue = $1 RETURNING venue", venue)

    async def close(self) -> None:
        """Release every session."""
        for venue in list(self._held):
            await self.release(venue)


def session_key(venue: VenueName) -> int:
    """The advisory lock key of the venue's session."""
    return int.from_bytes(hashlib.sha256(f"session of {venue}".encode()).digest()[:8], "big", signed=True)


class PostgresRelayLeases(SqlRelayLeases):
    """ports.bus.RelayLeases among the processes of one database."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def _read(self, sql: str, *values: Any) -> Sequence[Sequence[Any]]:
        return await self._reader.unconfirmed_rows(sql, *values)

    _write = _read
