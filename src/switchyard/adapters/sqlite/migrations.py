"""Creates and upgrades the schema of a SQLite file, and fills an empty one from an audit file."""

import asyncio
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Self

import apsw

from switchyard.adapters.sqlite import identity, rows
from switchyard.adapters.sqlite.append import program_fragments
from switchyard.adapters.sqlite.connections import connect, hold_alone
from switchyard.adapters.sqlite.identity import set_installation
from switchyard.adapters.system_clock import random_installation
from switchyard.adapters.tables import STATE_TABLES, check_version, programs, schema_files
from switchyard.domain.accounts.positions import Position
from switchyard.domain.journal.changes import Execution
from switchyard.domain.journal.lines import data_text, stamp
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxRow
from switchyard.domain.risk.kills import Kill, KillOrder
from switchyard.ports.books import PlacedEvent, RebuiltIdentity


def check(connection: apsw.Connection) -> None:
    """Raise SchemaMismatch unless the file has the schema version that this code needs."""
    check_version(_version(connection), len(schema_files(__package__)))


def is_new(path: Path) -> bool:
    """Whether the file is missing or has no schema, as an interrupted first start leaves it."""
    with _locked(path) as connection:
        # Version 0 is not enough: another program's database has it too.
        return _version(connection) == 0 and connection.execute("SELECT count(*) FROM sqlite_schema").get == 0


def upgrade(path: Path) -> int:
    """Apply the missing steps and all programs in one transaction; returns the version."""
    files = schema_files(__package__)
    with _locked(path) as connection:
        version = _version(connection)
        if version > len(files):
            check_version(version, len(files))
        if version < len(files):
            with connection:
                for file in files[version:]:
                    connection.execute(file.sql)
                for program in programs(__package__, program_fragments()):
                    connection.execute(program)
                if version == 0:
                    set_installation(connection, random_installation())
                connection.execute(f"PRAGMA user_version = {len(files)}")
    return len(files)


def _version(connection: apsw.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").get
    return version


@contextmanager
def _locked(path: Path) -> Iterator[apsw.Connection]:
    lock = hold_alone(path)
    try:
        with closing(connect(path)) as connection:
            yield connection
    finally:
        os.close(lock)


# Rows per statement: a few megabytes of JSON.
BATCH = 5_000
_TABLES = ("events", *(table.name for table in STATE_TABLES))
_ADD_EVENT = """
INSERT INTO events (seq, epoch, at, type, account_id, order_id, data, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_IS_EMPTY = "SELECT " + " AND ".join(f"NOT EXISTS (SELECT 1 FROM {table})" for table in _TABLES)


class SqliteRebuild:
    """ports.books.RebuildTarget on a file that has its schema; holds the file lock while it is open."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._open)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._close)

    async def is_empty(self) -> bool:
        """Whether no event and no row was ever written."""
        [(empty,)] = await asyncio.to_thread(lambda: self._connection.execute(_IS_EMPTY).fetchall())
        return bool(empty)

    async def load_events(self, events: Sequence[PlacedEvent]) -> None:
        """Insert the next events with the numbers, times and hashes that they have."""
        await asyncio.to_thread(self._load_events, events)

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
        for part, structs in (
            ("new_orders", orders),
            ("new_outbox", outbox),
            ("keys", keys),
            ("positions", positions),
            ("checked_executions", executions),
            ("kills", kills),
            ("kill_orders", kill_orders),
        ):
            await asyncio.to_thread(self._load, part, iter(structs))

    async def finish(self, new: RebuiltIdentity) -> None:
        """Set the identity of the journal and commit everything."""
        assert new.shard == 0, "an embedded journal has one shard"
        await asyncio.to_thread(self._finish, new)

    def _open(self) -> None:
        self._lock = hold_alone(self._path)
        try:
            self._connection = connect(self._path)
            self._connection.execute("BEGIN IMMEDIATE")
        except BaseException:
            os.close(self._lock)
            raise

    def _load_events(self, events: Sequence[PlacedEvent]) -> None:
        assert all(placed.shard == 0 for placed in events), "an embedded journal has one shard"
        event_rows = [
            (
                event.seq,
                placed.epoch,
                stamp(event.at),
                event.type,
                event.account_id,
                event.order_id,
                data_text(event),
                bytes.fromhex(event.hash),
            )
            for placed in events
            for event in (placed.event,)
        ]
        self._connection.executemany(_ADD_EVENT, event_rows)

    def _load(self, part: str, structs: Iterator[Any]) -> None:
        while batch := list(islice(structs, BATCH)):
            self._insert(part, rows.json_rows(batch))

    def _insert(self, part: str, batch: str | None) -> None:
        self._connection.execute(f"INSERT INTO append_group ({part}) VALUES (?)", (batch,))

    def _finish(self, new: RebuiltIdentity) -> None:
        values = (new.head.epoch, new.head.seq, new.head.hash, stamp(new.at))
        self._connection.execute(
            "UPDATE journal_heads SET epoch = ?, seq = ?, hash = ?, at = ? WHERE shard = 0", values
        )
        identity.set_epochs(self._connection, list(new.epochs), new.at)
        identity.keep_installation(self._connection, new.installation_id, new.tag)
        identity.set_cursor(self._connection, new.marker)
        self._connection.execute("COMMIT")

    def _close(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        else:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._connection.close()
        os.close(self._lock)
