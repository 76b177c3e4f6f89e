"""A SQLite file made anew from events, and all of its orders read."""

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Self

import apsw

from switchyard.adapters.sqlite import rows
from switchyard.adapters.sqlite.connections import connect, hold_alone
from switchyard.domain.chain import stamp
from switchyard.domain.changes import Execution
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OutboxRow
from switchyard.domain.positions import Position
from switchyard.ports.journal import Head
from switchyard.ports.rebuild import PlacedEvent

# What one statement takes in as JSON: some megabytes at most.
BATCH = 5_000
_TABLES = ("events", "orders", "idempotency_keys", "outbox_orders", "positions", "executions", "reader_cursors")
_IS_EMPTY = "SELECT " + " AND ".join(f"NOT EXISTS (SELECT 1 FROM {table})" for table in _TABLES)


class SqliteRebuild:
    """ports.rebuild.RebuildTarget: one transaction over a file with its schema in place, held by this process alone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._open)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._close)

    async def is_empty(self) -> bool:
        """Whether nothing was ever written to it."""
        [(empty,)] = await asyncio.to_thread(lambda: self._connection.execute(_IS_EMPTY).fetchall())
        return bool(empty)

    async def load_events(self, events: Sequence[PlacedEvent]) -> None:
        """Take the next events, numbers, times and hashes as they are."""
        await asyncio.to_thread(self._load_events, events)

    async def load_state(
        self,
        orders: Collection[Order],
        outbox: Collection[OutboxRow],
        keys: Collection[KeyEntry],
        positions: Collection[Position],
        executions: Collection[Execution],
    ) -> None:
        """Take the rows that the events have made."""
        for part, made in (
            ("new_orders", orders),
            ("new_outbox", outbox),
            ("keys", keys),
            ("positions", positions),
            ("executions", executions),
        ):
            await asyncio.to_thread(self._load, part, iter(made))

    async def set_head(self, shard: int, head: Head, at: datetime) -> None:
        """Put the journal's newest place and time, and commit everything."""
        assert shard == 0, "an embedded journal has one shard"
        values = (head.epoch, head.seq, head.hash, stamp(at))
        await asyncio.to_thread(self._finish, values)

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
        made = [
            (one.seq, placed.epoch, stamp(one.at), one.type, one.account_id, one.order_id, one.text, one.hash)
            for placed in events
            for one in (placed.event,)
        ]
        self._put("events", rows.text_array(made))

    def _load(self, part: str, made: Iterator[Any]) -> None:
        while batch := list(islice(made, BATCH)):
            self._put(part, rows.arrays(batch))

    def _put(self, part: str, batch: str | None) -> None:
        self._connection.execute(f"INSERT INTO append_group ({part}) VALUES (?)", (batch,))

    def _finish(self, values: tuple[int, int, str, str]) -> None:
        self._connection.execute(
            "UPDATE journal_heads SET epoch = ?, seq = ?, hash = ?, at = ? WHERE shard = 0", values
        )
        self._connection.execute("COMMIT")

    def _close(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        else:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._connection.close()
        os.close(self._lock)


class SqliteOrderDump:
    """ports.rebuild.OrderDump beside whoever holds the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def all_orders(self) -> AsyncIterator[Order]:
        """Every order of one moment, sorted by id, a page at a time."""
        connection = await asyncio.to_thread(connect, self._path, readonly=True)
        try:
            found = connection.execute(f"SELECT {rows.ORDER_COLUMNS} FROM orders ORDER BY order_id")
            while page := await asyncio.to_thread(lambda: list(map(rows.order, islice(found, BATCH)))):
                for order in page:
                    yield order
        finally:
            connection.close()
