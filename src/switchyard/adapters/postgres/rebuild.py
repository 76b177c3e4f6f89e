"""A PostgreSQL database made anew from events, and all of its orders read."""

from collections.abc import AsyncIterator, Collection, Sequence
from datetime import datetime
from typing import Any, Self

import msgspec

from switchyard.adapters.postgres import rows
from switchyard.adapters.postgres.connection import Connection, connect
from switchyard.domain.changes import Execution
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OutboxRow
from switchyard.domain.positions import Position
from switchyard.ports.journal import Head
from switchyard.ports.rebuild import PlacedEvent

PAGE = 1_000
_TABLES = ("events", "orders", "idempotency_keys", "outbox_orders", "positions", "executions", "reader_cursors")
_IS_EMPTY = "SELECT " + " AND ".join(f"NOT EXISTS (SELECT FROM {table})" for table in _TABLES)
_EVENT_COLUMNS = ("shard", "seq", "epoch", "at", "type", "account_id", "order_id", "text", "hash")
_SET_HEAD = """
INSERT INTO journal_heads (shard, epoch, seq, hash, at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (shard) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq, hash = excluded.hash, at = excluded.at
"""


class PostgresRebuild:
    """ports.rebuild.RebuildTarget: one transaction over a database with its schema in place."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> Self:
        self._connection: Connection = await connect(self._url)
        self._transaction = self._connection.transaction()
        await self._transaction.start()
        # A gateway that starts meanwhile waits here with its first commit, and then goes on from the rebuilt head.
        await self._connection.execute("LOCK TABLE journal_heads IN ACCESS EXCLUSIVE MODE")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()  # which rolls back what was not committed

    async def is_empty(self) -> bool:
        """Whether nothing was ever written to it."""
        return bool(await self._connection.fetchval(_IS_EMPTY))

    async def load_events(self, events: Sequence[PlacedEvent]) -> None:
        """Take the next events, numbers, times and hashes as they are."""
        for seq in (events[0].event.seq, events[-1].event.seq):  # a batch is shorter than a segment
            await self._connection.execute("SELECT ensure_segment($1)", seq)
        records = [
            (placed.shard, one.seq, placed.epoch, one.at, one.type, one.account_id, one.order_id, one.text, one.hash)
            for placed in events
            for one in (placed.event,)
        ]
        await self._connection.copy_records_to_table("events", records=records, columns=_EVENT_COLUMNS)

    async def load_state(
        self,
        orders: Collection[Order],
        outbox: Collection[OutboxRow],
        keys: Collection[KeyEntry],
        positions: Collection[Position],
        executions: Collection[Execution],
    ) -> None:
        """Take the rows that the events have made."""
        await self._copy("orders", Order, orders)
        await self._copy("outbox_orders", OutboxRow, outbox)
        await self._copy("idempotency_keys", KeyEntry, keys)
        await self._copy("positions", Position, positions)
        await self._copy("executions", Execution, executions)

    async def set_head(self, shard: int, head: Head, at: datetime) -> None:
        """Put the journal's newest place and time, and commit everything."""
        await self._connection.execute(_SET_HEAD, shard, head.epoch, head.seq, head.hash, at)
        await self._transaction.commit()

    async def _copy(self, table: str, struct: type[msgspec.Struct], made: Collection[Any]) -> None:
        records = map(msgspec.structs.astuple, made)
        await self._connection.copy_records_to_table(table, records=records, columns=struct.__struct_fields__)


class PostgresOrderDump:
    """ports.rebuild.OrderDump beside whoever uses the database."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def all_orders(self) -> AsyncIterator[Order]:
        """Every order of one moment, sorted by id, a page at a time."""
        connection = await connect(self._url)
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                sql = f"SELECT {rows.ORDER_COLUMNS} FROM orders ORDER BY order_id"
                async for record in connection.cursor(sql, prefetch=PAGE):
                    yield rows.order(record)
        finally:
            await connection.close()
