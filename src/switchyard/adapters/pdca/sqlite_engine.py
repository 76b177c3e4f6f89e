"""The PDCA store's SQLite file: shared by the server and by commands, so that it has no lock of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw

from switchyard.adapters.pdca.session import Dialect, Row
from switchyard.adapters.sqlite.connections import OpenFiles, connect, create_schema
from switchyard.adapters.sqlite.rows import parameters
from switchyard.adapters.threads import WorkerThreads
from switchyard.domain.errors import CannotStart, OutcomeUnknown
from switchyard.domain.journal.lines import GENESIS
from switchyard.ports.strategies import PdcaUnavailable

T = TypeVar("T")

# Another process writes for milliseconds; a caller over HTTP waits at most ten seconds.
BUSY_MILLISECONDS = 5_000
# SQLite's default: each process checkpoints what it has written.
CHECKPOINT_PAGES = 1_000

# Statements that are wrong, not a store that cannot be reached.
_DEFECTS = (apsw.SQLError, apsw.ConstraintError, apsw.BindingsError, apsw.MismatchError)

SCHEMA_VERSION = 5
# The same tables as in adapters/postgres/schema, where their columns are described.
SCHEMA = f"""
CREATE TABLE pdca_place (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    hash TEXT NOT NULL
) STRICT;
INSERT INTO pdca_place VALUES (1, 1, 0, '{GENESIS}');
CREATE TABLE pdca_strategies (
    tenant TEXT NOT NULL,
    strategy_id TEXT NOT NULL,
    registered INTEGER NOT NULL,
    owner TEXT,
    health TEXT NOT NULL,
    health_rank INTEGER NOT NULL,
    last_checked_at TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    search TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (strategy_id, tenant)
) STRICT, WITHOUT ROWID;
CREATE INDEX pdca_strategies_of_tenant ON pdca_strategies (tenant, registered);
CREATE TABLE pdca_strategy_tags (
    tenant TEXT NOT NULL,
    strategy_id TEXT NOT NULL,
    tag TEXT NOT NULL,
    PRIMARY KEY (strategy_id, tenant, tag),
    FOREIGN KEY (strategy_id, tenant) REFERENCES pdca_strategies (strategy_id, tenant) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE TABLE pdca_requests (
    request_id TEXT PRIMARY KEY,
    client_id TEXT NOT NULL,
    caller TEXT NOT NULL,
    operation TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    digest TEXT NOT NULL,
    runner TEXT NOT NULL,
    batch INTEGER NOT NULL,
    submitted_at TEXT,
    started_at TEXT,
    finished_at TEXT,
    run TEXT NOT NULL,
    body TEXT NOT NULL,
    UNIQUE (client_id, caller, operation, idempotency_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX pdca_requests_open ON pdca_requests (runner, request_id) WHERE finished_at IS NULL;
CREATE INDEX pdca_requests_ended ON pdca_requests (finished_at) WHERE finished_at IS NOT NULL;
CREATE TABLE pdca_items (
    request_id TEXT NOT NULL REFERENCES pdca_requests ON DELETE CASCADE,
    number INTEGER NOT NULL,
    batch INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    strategy_id TEXT NOT NULL,
    strategy_created_at TEXT NOT NULL,
    state TEXT NOT NULL,
    generation INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    worker TEXT,
    lease_until TEXT,
    started_at TEXT,
    finished_at TEXT,
    outcome TEXT,
    artifacts TEXT NOT NULL,
    caller TEXT,
    queue_position INTEGER,
    PRIMARY KEY (request_id, number),
    UNIQUE (request_id, strategy_id, tenant)
) STRICT, WITHOUT ROWID;
CREATE INDEX pdca_items_open ON pdca_items (request_id, batch, number) WHERE state IN ('queued', 'running');
CREATE INDEX pdca_items_queue ON pdca_items (queue_position, request_id, number) WHERE queue_position IS NOT NULL;
CREATE INDEX pdca_items_of_caller ON pdca_items (caller, queue_position) WHERE queue_position IS NOT NULL;
CREATE INDEX pdca_items_states ON pdca_items (request_id, state);
CREATE TABLE pdca_artifacts (
    request_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    strategy_id TEXT NOT NULL,
    name TEXT NOT NULL,
    media_type TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (request_id, strategy_id, name, tenant),
    FOREIGN KEY (request_id, strategy_id, tenant) REFERENCES pdca_items (request_id, strategy_id, tenant)
        ON DELETE CASCADE
) STRICT;
CREATE TABLE pdca_tally (
    outcome TEXT PRIMARY KEY,
    items INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO pdca_tally VALUES ('succeeded', 0), ('failed', 0);
"""


class SqliteEngine:
    """adapters.pdca.session.Engine on one file: one thread writes, another one reads."""

    dialect = Dialect(each="SELECT value FROM json_each({})", skip_locked="", lock="", lock_caller=None)

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer = _Thread(path, "pdca-writer")
        self._reader = _Thread(path, "pdca-reader")
        self._files: OpenFiles | None = None
        """Set once the file is open: another one may take its place."""

    @classmethod
    async def open(cls, path: Path) -> "SqliteEngine":
        """Open the file, or create it with its schema."""
        engine = cls(path)
        try:
            await engine._writer.run(lambda connection: _prepare(connection, path))
        except apsw.Error as error:
            await engine.close()
            raise CannotStart(
                f"{path} cannot be read: {error}. Put a copy of it back, or move it away: the strategies of all orders "
                "are registered again, what people decided about them and all rechecks are lost"
            ) from error
        except BaseException:
            await engine.close()
            raise
        engine._files = OpenFiles(path)
        return engine

    @asynccontextmanager
    async def reading(self) -> AsyncIterator["_SqliteSession"]:
        """A transaction of the reader thread."""
        async with self._reader.turn:
            try:
                await self._reader.run(lambda connection: self._begin(connection, "BEGIN"))
                yield _SqliteSession(self._reader)
            except _DEFECTS:
                raise
            except apsw.Error as error:
                raise PdcaUnavailable(f"the PDCA store cannot be read: {error}") from error
            finally:
                await self._reader.finish("ROLLBACK")

    @asynccontextmanager
    async def writing(self) -> AsyncIterator["_SqliteSession"]:
        """A transaction of the writer thread, which waits for those of other processes."""
        async with self._writer.turn:
            try:
                await self._writer.run(lambda connection: self._begin(connection, "BEGIN IMMEDIATE"))
                yield _SqliteSession(self._writer)
                await self._commit()
            except _DEFECTS:
                raise
            except apsw.Error as error:
                raise PdcaUnavailable(f"the PDCA store cannot be written, nothing was: {error}") from error
            finally:
                await self._writer.finish("ROLLBACK")

    async def close(self) -> None:
        """Finish the transactions in progress and close the file."""
        await self._reader.close()
        await self._writer.close()

    def _begin(self, connection: apsw.Connection, statement: str) -> None:
        """Begin a transaction; a file that was removed or replaced would lose it at the next start."""
        if problem := self._problem():
            raise PdcaUnavailable(problem)
        connection.execute(statement)

    def _problem(self) -> str | None:
        problem = None if self._files is None else self._files.problem
        return problem and f"{problem}: restart this process"

    async def _commit(self) -> None:
        try:
            await self._writer.run(lambda connection: connection.execute("COMMIT"))
        except (apsw.FullError, apsw.BusyError):
            raise
        except apsw.Error as error:
            raise OutcomeUnknown(f"the PDCA store failed on the disk: {error}") from error
        if problem := self._problem():
            raise OutcomeUnknown(problem)


class _Thread:
    """A thread with a connection of its own; whoever holds `turn` has the thread."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._thread = WorkerThreads(name)
        self._connection: apsw.Connection | None = None
        self.turn = asyncio.Lock()

    async def run(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run in the thread."""
        return await self._thread.call(self._with_connection, work)

    async def finish(self, statement: str) -> None:
        """End a transaction that is still open, even while the caller is being cancelled."""
        ended = asyncio.ensure_future(self.run(lambda connection: _end(connection, statement)))
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            await ended  # the next holder of the turn must find no transaction
            raise

    async def close(self) -> None:
        """Finish what is running and close the connection."""
        await self._thread.call(self._close)
        self._thread.shutdown()

    def _with_connection(self, work: Callable[[apsw.Connection], T]) -> T:
        if self._connection is None:
            self._connection = connect(self._path)
            self._connection.set_busy_timeout(BUSY_MILLISECONDS)
            self._connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            self._connection.execute("PRAGMA foreign_keys = ON")
        return work(self._connection)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class _SqliteSession:
    """A transaction in progress."""

    def __init__(self, thread: _Thread) -> None:
        self._thread = thread

    async def rows(self, sql: str, *values: Any) -> Sequence[Row]:
        """Run a statement; the parameters are named by their numbers."""
        given = parameters(values)
        return await self._thread.run(lambda connection: connection.execute(sql, given).fetchall())


def _end(connection: apsw.Connection, statement: str) -> None:
    if connection.in_transaction:
        connection.execute(statement)


def _prepare(connection: apsw.Connection, path: Path) -> None:
    create_schema(connection, SCHEMA, SCHEMA_VERSION, f"{path} is no PDCA store", ": move it away")
