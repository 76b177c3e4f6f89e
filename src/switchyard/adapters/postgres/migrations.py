"""Creates and upgrades the schema on PostgreSQL, and fills an empty database from an audit file."""

from collections.abc import Collection, Sequence
from typing import Any, Self

import msgspec

from switchyard.adapters.postgres import identity
from switchyard.adapters.postgres.connection import Connection, connect
from switchyard.adapters.postgres.identity import set_installation
from switchyard.adapters.system_clock import random_installation
from switchyard.adapters.tables import (
    EXECUTIONS,
    IDEMPOTENCY_KEYS,
    KILL_ORDERS,
    KILLS,
    ORDERS,
    OUTBOX_ORDERS,
    POSITIONS,
    STATE_TABLES,
    Table,
    check_version,
    fragments,
    programs,
    schema_files,
)
from switchyard.domain.accounts.positions import Position
from switchyard.domain.journal.changes import Execution
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.journal.lines import data_text
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxRow
from switchyard.domain.risk.kills import Kill, KillOrder
from switchyard.ports.books import PlacedEvent, RebuiltIdentity

# Of two concurrent upgrades, the second one waits and finds nothing left to do.
_LOCK = "SELECT pg_advisory_lock(hashtext('switchyard'), 1)"
_CREATE = """
CREATE TABLE IF NOT EXISTS schema_version (
    number integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""
_RECORD = "INSERT INTO schema_version (number, name) VALUES ($1, $2)"


async def upgrade(connection: Connection) -> int:
    """Apply the missing steps and all programs in one transaction; returns the version."""
    files = schema_files(__package__)
    await connection.execute(_LOCK)  # released when the session ends
    await connection.execute(_CREATE)
    current = await version(connection)
    if current > len(files):
        check_version(current, len(files))
    if current < len(files):
        async with connection.transaction():
            for file in files[current:]:
                await connection.execute(file.sql)
                await connection.execute(_RECORD, file.number, file.name)
            for program in programs(__package__, fragments(STATE_TABLES)):
                await connection.execute(program)
            if current == 0:
                await set_installation(connection, random_installation())
    return len(files)


async def check(connection: Connection) -> None:
    """Raise SchemaMismatch unless the database has the schema version that this code needs."""
    check_version(await version(connection), len(schema_files(__package__)))


async def version(connection: Connection) -> int:
    """The version of the schema; 0 in an empty database."""
    if await connection.fetchval("SELECT to_regclass('schema_version')") is None:
        return 0
    newest: int = await connection.fetchval("SELECT coalesce(max(number), 0) FROM schema_version")
    return newest


# As in schema/programs/segments.sql.
SEGMENT_LENGTH = 1_000_000
_TABLES = ("events", *(table.name for table in STATE_TABLES))
_IS_EMPTY = "SELECT " + " AND ".join(f"NOT EXISTS (SELECT FROM {table})" for table in _TABLES)
_EVENT_COLUMNS = ("shard", "epoch", "seq", "at", "type", "account_id", "order_id", "data", "digest")
_SET_HEAD = """
INSERT INTO journal_heads (shard, epoch, seq, hash, at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (shard) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq, hash = excluded.hash, at = excluded.at
"""


class PostgresRebuild:
    """ports.books.RebuildTarget on a database that has its schema."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> Self:
        self._connection: Connection = await connect(self._url)
        self._transaction = self._connection.transaction()
        await self._transaction.start()
        # A gateway that starts now waits with its first commit, and then continues from the rebuilt head.
        await self._connection.execute("LOCK TABLE journal_heads IN ACCESS EXCLUSIVE MODE")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()  # rolls back unless `finish` has committed

    async def is_empty(self) -> bool:
        """Whether no event and no row was ever written."""
        return bool(await self._connection.fetchval(_IS_EMPTY))

    async def load_events(self, events: Sequence[PlacedEvent]) -> None:
        """Insert the next events with the numbers, times and hashes that they have."""
        for seq in sorted({placed.event.seq // SEGMENT_LENGTH * SEGMENT_LENGTH for placed in events}):
            await self._connection.execute("SELECT ensure_segment($1)", seq)
        records = [_event_record(placed.shard, placed.epoch, placed.event) for placed in events]
        await self._connection.copy_records_to_table("events", records=records, columns=_EVENT_COLUMNS)

    async def load_state(
        self,
        orders: Collection[Order],
        outbox: Collection[OutboxRow],
        keys: Collection[KeyEntry],
        positions: Collection[Position],
        executions: Collection[Execution],
        kills: Collection[Kill] = (),
        kill_orders: Collection[KillOrder] = (),
    ) -> None:
        """Insert the rows derived from the events."""
        await self._copy(ORDERS, orders)
        await self._connection.execute("SELECT set_unfinished_orders()")
        await self._copy(OUTBOX_ORDERS, outbox)
        await self._copy(IDEMPOTENCY_KEYS, keys)
        await self._copy(POSITIONS, positions)
        await self._copy(EXECUTIONS, executions)
        await self._copy(KILLS, kills)
        await self._copy(KILL_ORDERS, kill_orders)

    async def finish(self, new: RebuiltIdentity) -> None:
        """Set the identity of the journal and commit everything."""
        head = new.head
        await self._connection.execute(_SET_HEAD, new.shard, head.epoch, head.seq, head.hash, new.at)
        await identity.set_epochs(self._connection, new.shard, list(new.epochs), new.at)
        await identity.keep_installation(self._connection, new.installation_id, new.tag)
        await identity.set_cursor(self._connection, new.marker)
        await self._transaction.commit()

    async def _copy(self, table: Table, structs: Collection[Any]) -> None:
        records = map(msgspec.structs.astuple, structs)
        await self._connection.copy_records_to_table(table.name, records=records, columns=table.columns)


def _event_record(shard: int, epoch: int, event: JournalEvent) -> tuple[Any, ...]:
    """The values of `_EVENT_COLUMNS`."""
    members = (event.seq, event.at, event.type, event.account_id, event.order_id)
    return shard, epoch, *members, data_text(event), bytes.fromhex(event.hash)
