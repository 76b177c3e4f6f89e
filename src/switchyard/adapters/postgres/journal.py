"""The journal on PostgreSQL: one call of `append_group` per group, asked again when its answer was lost."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import asyncpg
import msgspec
import structlog

from switchyard.adapters.postgres import rows
from switchyard.adapters.postgres.connection import FAILED, LOST, Connection, Reader, Record, connect
from switchyard.domain.chain import GENESIS
from switchyard.domain.changes import Change, Committed, Conflict, Cursor, Outcome
from switchyard.domain.errors import GroupRejected, JournalUnavailable, OutcomeUnknown
from switchyard.domain.events import JournalEvent
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import OrderId, VenueClientOrderId
from switchyard.domain.outbox import OrderState
from switchyard.domain.positions import Position, PositionKey
from switchyard.ports.journal import PAGE_MAX, Head, Lines

log = structlog.get_logger()

# A restart or a failover within this time costs its callers nothing but the wait; most clients wait no longer.
SETTLE_SECONDS_MAX = 10.0
# A server that restarts rejects at once: a pause keeps the asking from becoming its load.
SETTLE_PAUSE_SECONDS = 0.1

# The database read the group and would not have its values: the same group would fail again, another one may not.
_BAD_DATA = (
    asyncpg.DataError,  # of the server, or of the driver's own encoders
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.CardinalityViolationError,
    asyncpg.ProgramLimitExceededError,
)

_APPEND = f"SELECT * FROM append_group({', '.join(f'${place}' for place in range(1, 23))})"
_STATES = f"""
SELECT {rows.STATE_COLUMNS} FROM orders LEFT JOIN outbox_orders AS outbox USING (order_id)
WHERE orders.{{column}} = ANY($1) ORDER BY orders.order_id, outbox.kind DESC, outbox.number
"""
_BY_ORDER_ID = _STATES.format(column="order_id")
_BY_CLIENT_ID = _STATES.format(column="venue_client_order_id")

_POSITIONS = f"""
SELECT held.* FROM unnest($1::text[], $2::text[]) AS wanted (account_id, symbol) CROSS JOIN LATERAL (
    SELECT {rows.POSITION_COLUMNS} FROM positions AS present
    WHERE (present.account_id, present.symbol) = (wanted.account_id, wanted.symbol) LIMIT 1
) AS held
"""

_LINES = """
WITH page AS (
    SELECT epoch, seq, hash, text || ',"hash":"' || hash || '"}' || chr(10) AS line
    FROM events WHERE shard = $1 AND seq > $2 ORDER BY seq LIMIT $3
)
SELECT whole.text, whole.count, last.epoch, last.seq, last.hash
FROM (SELECT string_agg(line, '' ORDER BY seq) AS text, count(*) AS count FROM page) AS whole,
    (SELECT epoch, seq, hash FROM page ORDER BY seq DESC LIMIT 1) AS last
"""

_taken = msgspec.json.Decoder(dict[int, KeyEntry])


class PostgresJournal:
    """ports.journal.Journal on a server that several processes share."""

    def __init__(self, url: str, reader: Reader, *, settle_seconds_max: float = SETTLE_SECONDS_MAX) -> None:
        self._url = url
        self._reader = reader
        self._settle_seconds_max = settle_seconds_max
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    async def load(self, order_ids: Sequence[OrderId]) -> Mapping[OrderId, OrderState]:
        """The orders that exist, each with all of its outbox rows."""
        found = rows.states(await self._reader.rows(_BY_ORDER_ID, order_ids))
        return {state.order.order_id: state for state in found}

    async def load_by_client_order_id(
        self, ids: Sequence[VenueClientOrderId]
    ) -> Mapping[VenueClientOrderId, OrderState]:
        """The same, found by the ids that a venue knows."""
        found = rows.states(await self._reader.rows(_BY_CLIENT_ID, ids))
        return {state.order.venue_client_order_id: state for state in found}

    async def load_positions(self, keys: Sequence[PositionKey]) -> Mapping[PositionKey, Position]:
        """Of the named positions those that ever had a fill."""
        accounts, symbols = [account for account, _ in keys], [symbol for _, symbol in keys]
        found = map(rows.position, await self._reader.rows(_POSITIONS, accounts, symbols))
        return {position.key: position for position in found}

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Commit a group at once and answer for each change; durable when this returns."""
        arguments = (shard, group_id, now, len(changes), *_events(changes), *_rows(changes))
        async with self._turn:
            try:
                answer = await self._settle(arguments)
            except asyncio.CancelledError:
                # The command is still under way on this connection; the next group must not wait for its end.
                self._disconnect()
                raise
        return _outcomes(changes, answer)

    async def read(self, shard: int, after_seq: int, limit: int) -> list[JournalEvent]:
        """The next events in order, at most a page."""
        sql = f"SELECT {rows.EVENT_COLUMNS} FROM events WHERE shard = $1 AND seq > $2 ORDER BY seq LIMIT $3"
        found = await self._reader.rows(sql, shard, after_seq, min(limit, PAGE_MAX))
        return [rows.journal_event(record) for record in found]

    async def lines(self, shard: int, after_seq: int, limit: int) -> Lines | None:
        """The same as whole lines in one piece, put together by the database; none where there are none."""
        found = await self._reader.rows(_LINES, shard, after_seq, min(limit, PAGE_MAX))
        if not found or not found[0]["count"]:
            return None
        row = found[0]
        return Lines(row["text"].encode(), row["count"], Head(row["epoch"], row["seq"], row["hash"]))

    async def head(self, shard: int) -> Head:
        """The newest place."""
        found = await self._reader.rows("SELECT epoch, seq, hash FROM journal_heads WHERE shard = $1", shard)
        return Head(*found[0]) if found else Head(1, 0, GENESIS)

    async def cursor(self, name: str) -> Cursor | None:
        """How far the named reader has come."""
        found = await self._reader.rows("SELECT name, epoch, seq, hash FROM reader_cursors WHERE name = $1", name)
        return Cursor(**found[0]) if found else None

    async def open_epoch(self) -> int:
        """Begin the next epoch; events from now on carry its number."""
        sql = "UPDATE journal_heads SET epoch = epoch + 1 WHERE shard = 0 RETURNING epoch"
        async with self._turn:
            connection = await self._connected()
            found: int | None = await connection.fetchval(sql)
        if found is None:
            raise JournalUnavailable("the journal is empty: there is nothing that could have been restored")
        return found

    async def close(self) -> None:
        """Wait for the group under way, then disconnect."""
        async with self._turn:
            if self._connection is not None:
                await self._connection.close(timeout=1)
                self._connection = None

    async def _settle(self, arguments: Sequence[Any]) -> Record:
        """Call until the group's fate is known: the server remembers the groups that it has written."""
        clock = asyncio.get_running_loop()
        deadline = clock.time() + self._settle_seconds_max
        in_doubt: BaseException | None = None
        while True:
            try:
                connection = await self._connected()
                async with asyncio.timeout_at(deadline):
                    return await self._call(connection, arguments)
            except JournalUnavailable:
                # Certain for this call, not for the lost one before it.
                if in_doubt is None:
                    raise
            except LOST as error:
                log.warning("the answer to a commit was lost; asking for it again", error=repr(error))
                in_doubt = error
            self._disconnect()
            if clock.time() >= deadline:
                raise OutcomeUnknown(f"the answer to a commit was lost: {in_doubt!r}") from in_doubt
            await asyncio.sleep(SETTLE_PAUSE_SECONDS)

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            try:
                self._connection = await connect(self._url)
            except FAILED as error:
                raise JournalUnavailable(f"the database cannot be reached: {error!r}") from error
        return self._connection

    async def _call(self, connection: Connection, arguments: Sequence[Any]) -> Record:
        try:
            return await connection.fetchrow(_APPEND, *arguments)
        except _BAD_DATA as error:
            raise GroupRejected(f"the database rejected the group: {error}") from error
        except LOST:
            raise
        except asyncpg.PostgresError as error:
            raise JournalUnavailable(f"the database rejected the group: {error}") from error

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


def _events(changes: Sequence[Change]) -> list[list[Any]]:
    """The events column by column: as JSON, their lines would be escaped here only to be unescaped there."""
    numbered = [(number, event) for number, change in enumerate(changes) for event in change.events]
    return [
        [number for number, _ in numbered],
        [event.type for _, event in numbered],
        [event.account_id for _, event in numbered],
        [event.order_id for _, event in numbered],
        [event.tail for _, event in numbered],
    ]


def _rows(changes: Sequence[Change]) -> list[Any]:
    """For each table the numbers of the changes and the rows, in the order of `append_group`."""
    arguments: list[Any] = []
    for table in ("orders", "keys", "outbox", "executions", "cursors"):
        numbered = [(number, row) for number, change in enumerate(changes) for row in getattr(change, table)]
        arguments += [[number for number, _ in numbered], rows.as_json([row for _, row in numbered])]
    moves = [(number, *move) for number, change in enumerate(changes) for move in change.position_moves()]
    arguments += [[number for number, _, _ in moves], rows.as_json([row for _, _, row in moves])]
    arguments.append([base for _, base, _ in moves])
    return arguments


def _outcomes(changes: Sequence[Change], answer: Record) -> list[Outcome]:
    conflicts = set(answer["conflicts"])
    taken = _taken.decode(answer["taken"]) if answer["taken"] else {}
    next_seq = answer["seq_before"] + 1
    outcomes: list[Outcome] = []
    for number, change in enumerate(changes):
        if number in conflicts:
            outcomes.append(Conflict(taken.get(number)))
            continue
        outcomes.append(Committed(next_seq if change.events else 0))
        next_seq += len(change.events)
    return outcomes
