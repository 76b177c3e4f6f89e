"""Breaks in a SQLite file of their own: `backoffice rebuild` replaces the books, and explanations must survive it."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from switchyard.adapters.backoffice.breaks import SqlBreaks
from switchyard.adapters.backoffice.sqlite.files import opened
from switchyard.adapters.sqlite.connections import Connections
from switchyard.adapters.sqlite.rows import parameters
from switchyard.domain.errors import JournalUnavailable
from switchyard.domain.journal.lines import stamp
from switchyard.domain.reconcile.breaks import Break

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE breaks (
    break_id TEXT PRIMARY KEY,
    account_id TEXT,                -- NULL: it cannot be told
    class TEXT NOT NULL,
    state TEXT NOT NULL,
    version INTEGER NOT NULL,
    body TEXT NOT NULL              -- the Break as JSON
) STRICT, WITHOUT ROWID;
CREATE INDEX breaks_current ON breaks (break_id) WHERE state <> 'closed';
CREATE INDEX breaks_of_account ON breaks (account_id, break_id);
CREATE TABLE break_versions (       -- every version that a break had
    break_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    at TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (break_id, version)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER versions_stay BEFORE UPDATE ON break_versions BEGIN SELECT RAISE(ABORT, 'versions are kept'); END;
CREATE TRIGGER versions_remain BEFORE DELETE ON break_versions BEGIN SELECT RAISE(ABORT, 'versions are kept'); END;
"""
SAVE = """
INSERT INTO breaks (break_id, account_id, class, state, version, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (break_id) DO UPDATE SET
    account_id = excluded.account_id, class = excluded.class, state = excluded.state, version = excluded.version,
    body = excluded.body
WHERE breaks.version = excluded.version - 1
    OR (breaks.version = excluded.version AND breaks.body ->> 'changedAt' = excluded.body ->> 'changedAt')
"""
KEEP = "INSERT INTO break_versions (break_id, version, at, body) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"


class SqliteBreaks(SqlBreaks):
    """ports.books.BreakStore on one file."""

    any_of = "IN (SELECT value FROM json_each({}))"

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    @classmethod
    async def open(cls, path: Path) -> "SqliteBreaks":
        """Open the file, or create it, and lock it for this process."""
        return await asyncio.to_thread(cls._open, path)

    @classmethod
    def _open(cls, path: Path) -> "SqliteBreaks":
        unreadable = "Put a copy of it back, or move it away"
        return cls(opened(path, "breaks", SCHEMA, SCHEMA_VERSION, unreadable=unreadable))

    async def close(self) -> None:
        """Finish the write in progress and release the file."""
        await asyncio.to_thread(self._connections.close)

    async def save(self, breaks: Sequence[Break]) -> int:
        """Write each in its newest version, in one transaction."""
        with _available():
            return await self._connections.write(lambda connection: _save(connection, breaks))

    async def _rows(self, sql: str, *values: Any) -> Sequence[Sequence[Any]]:
        with _available():
            given = parameters(values)
            return await self._connections.read(lambda connection: connection.execute(sql, given).fetchall())


def _save(connection: apsw.Connection, breaks: Sequence[Break]) -> int:
    written = 0
    with connection:
        for one in breaks:
            body = msgspec.json.encode(one).decode()
            values = one.break_id, one.account_id, one.class_, one.state, one.version, body
            connection.execute(SAVE, values)
            if connection.changes():
                written += 1
                connection.execute(KEEP, (one.break_id, one.version, stamp(one.changed_at), body))
    return written


@contextmanager
def _available() -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise JournalUnavailable(f"the breaks cannot be read or written: {error}") from error
