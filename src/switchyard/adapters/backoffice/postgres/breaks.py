"""Breaks in PostgreSQL, in a schema of their own: `backoffice rebuild` replaces that of the books."""

from collections.abc import Sequence
from typing import Any

import msgspec

from switchyard.adapters.backoffice.breaks import SqlBreaks
from switchyard.adapters.postgres.connection import single_connection
from switchyard.adapters.postgres.reader import NO_HEADS, Reader
from switchyard.domain.journal.lines import stamp
from switchyard.domain.reconcile.breaks import Break

# Two processes may start at once; the number only has to differ from the other advisory locks.
SCHEMA_LOCK = 8_214_015
SCHEMA = """
CREATE SCHEMA IF NOT EXISTS reconciliation;
CREATE TABLE IF NOT EXISTS reconciliation.breaks (
    break_id   text COLLATE "C" PRIMARY KEY,
    account_id text COLLATE "C",  -- NULL: it cannot be told
    class      text NOT NULL,
    state      text NOT NULL,
    version    bigint NOT NULL,
    body       text NOT NULL      -- the Break as JSON
);
CREATE INDEX IF NOT EXISTS breaks_current ON reconciliation.breaks (break_id) WHERE state <> 'closed';
CREATE INDEX IF NOT EXISTS breaks_of_account ON reconciliation.breaks (account_id, break_id);
CREATE TABLE IF NOT EXISTS reconciliation.break_versions (
    break_id text COLLATE "C" NOT NULL,
    version  bigint NOT NULL,
    at       text NOT NULL,
    body     text NOT NULL,
    PRIMARY KEY (break_id, version)
);
"""
SAVE = """
WITH given AS (
    SELECT * FROM jsonb_to_recordset($1::text::jsonb)
    AS row (break_id text, account_id text, class text, state text, version bigint, at text, body text)
), written AS (
    INSERT INTO reconciliation.breaks AS kept (break_id, account_id, class, state, version, body)
    SELECT break_id, account_id, class, state, version, body FROM given
    ON CONFLICT (break_id) DO UPDATE SET
        account_id = excluded.account_id, class = excluded.class, state = excluded.state, version = excluded.version,
        body = excluded.body
    WHERE kept.version = excluded.version - 1 OR (
        kept.version = excluded.version
        AND kept.body::jsonb ->> 'changedAt' = excluded.body::jsonb ->> 'changedAt'
    )
    RETURNING break_id
), versions AS (
    INSERT INTO reconciliation.break_versions (break_id, version, at, body)
    SELECT break_id, version, at, body FROM given WHERE break_id IN (SELECT break_id FROM written)
    ON CONFLICT DO NOTHING
)
SELECT count(*) AS count FROM written
"""


class PostgresBreaks(SqlBreaks):
    """ports.books.BreakStore on PostgreSQL."""

    breaks = "reconciliation.breaks"
    break_versions = "reconciliation.break_versions"
    any_of = "= ANY ({})"

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @classmethod
    async def open(cls, url: str) -> "PostgresBreaks":
        """Connect, and create the tables where they do not exist."""
        async with single_connection(url) as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", SCHEMA_LOCK)
            await connection.execute(SCHEMA)
        return cls(await Reader.open(url, NO_HEADS))

    async def close(self) -> None:
        """Disconnect."""
        await self._reader.close()

    async def save(self, breaks: Sequence[Break]) -> int:
        """Write each in its newest version, in one statement."""
        rows = [
            {
                "break_id": one.break_id,
                "account_id": one.account_id,
                "class": one.class_,
                "state": one.state,
                "version": one.version,
                "at": stamp(one.changed_at),
                "body": msgspec.json.encode(one).decode(),
            }
            for one in breaks
        ]
        [row] = await self._reader.rows(SAVE, msgspec.json.encode(rows).decode())
        return int(row["count"])

    async def _rows(self, sql: str, *values: Any) -> Sequence[Sequence[Any]]:
        return await self._reader.rows(sql, *values)
