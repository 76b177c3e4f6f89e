"""The journal on SQLite: one statement per group, which is its transaction."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import apsw
import msgspec
import structlog

from switchyard.adapters.sqlite import rows
from switchyard.adapters.sqlite.connections import Connections
from switchyard.adapters.sqlite.expectations import conflicts_of
from switchyard.adapters.sqlite.statements import (
    APPEND,
    LINES,
    SELECT_BY_CLIENT_ID,
    SELECT_OUTBOX_OF,
    SELECT_POSITIONS,
    SELECT_STATES,
)
from switchyard.domain.chain import head_text, link, stamp
from switchyard.domain.changes import Change, Committed, Conflict, Cursor, Outcome
from switchyard.domain.errors import GroupRejected, JournalBroken, JournalUnavailable
from switchyard.domain.events import JournalEvent
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import OrderId, VenueClientOrderId
from switchyard.domain.outbox import OrderState
from switchyard.domain.positions import Position, PositionKey
from switchyard.ports.journal import PAGE_MAX, Head, Lines

T = TypeVar("T")
log = structlog.get_logger()

# A lost answer is asked for again within seconds; an hour leaves room for a debugger.
GROUP_MEMORY = timedelta(hours=1)
# Old groups are forgotten once in so many events, since each look costs a statement.
FORGET_EVERY = 4_096


class SqliteJournal:
    """ports.journal.Journal on one file in one process."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._head, self._at = self._read_head(connections.writer)
        self._broken = False

    async def load(self, order_ids: Sequence[OrderId]) -> Mapping[OrderId, OrderState]:
        """The orders that exist, each with all of its outbox rows."""
        ids = rows.text_array(order_ids)

        def look(connection: apsw.Connection) -> dict[str, OrderState]:
            with connection:  # one snapshot for the orders and their rows
                orders = connection.execute(SELECT_STATES, (ids,)).fetchall()
                outbox = connection.execute(SELECT_OUTBOX_OF, (ids,)).fetchall()
            return rows.states(orders, outbox)

        found = await self._connections.read(look)
        return {OrderId(key): state for key, state in found.items()}

    async def load_by_client_order_id(
        self, ids: Sequence[VenueClientOrderId]
    ) -> Mapping[VenueClientOrderId, OrderState]:
        """The same, found by the ids that a venue knows."""
        wanted = rows.text_array(ids)

        def look(connection: apsw.Connection) -> dict[str, OrderState]:
            with connection:
                orders = connection.execute(SELECT_BY_CLIENT_ID, (wanted,)).fetchall()
                order_ids = rows.text_array([row[0] for row in orders])
                outbox = connection.execute(SELECT_OUTBOX_OF, (order_ids,)).fetchall()
            return rows.states(orders, outbox)

        found = await self._connections.read(look)
        return {state.order.venue_client_order_id: state for state in found.values()}

    async def load_positions(self, keys: Sequence[PositionKey]) -> Mapping[PositionKey, Position]:
        """Of the named positions those that ever had a fill."""
        wanted = rows.text_array(keys)
        found = await self._connections.read(
            lambda connection: list(map(rows.position, connection.execute(SELECT_POSITIONS, (wanted,))))
        )
        return {position.key: position for position in found}

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Commit a group at once and answer for each change; durable when this returns."""
        assert shard == 0, "an embedded journal has one shard"
        return await self._connections.write(lambda connection: self._append(connection, group_id, changes, now))

    async def read(self, shard: int, after_seq: int, limit: int) -> list[JournalEvent]:
        """The next events in order, at most a page."""
        sql = f"SELECT {rows.EVENT_COLUMNS} FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
        page = (after_seq, min(limit, PAGE_MAX))
        return await self._connections.read(
            lambda connection: list(map(rows.journal_event, connection.execute(sql, page)))
        )

    async def lines(self, shard: int, after_seq: int, limit: int) -> Lines | None:
        """The same as whole lines in one piece, put together by the database; none where there are none."""

        def look(connection: apsw.Connection) -> Lines | None:
            with connection:
                row = connection.execute(LINES, (after_seq, min(limit, PAGE_MAX))).fetchone()
                assert row is not None, "an aggregate always has a row"
                text, count, last_seq = row
                if not count:
                    return None
                last = connection.execute("SELECT epoch, seq, hash FROM events WHERE seq = ?", (last_seq,)).fetchone()
            assert last is not None, "it was read a moment ago"
            return Lines(text.encode(), count, Head(*last))

        return await self._connections.read(look)

    async def head(self, shard: int) -> Head:
        """The newest place."""
        head, _ = await self._connections.read(self._read_head)
        return head

    async def cursor(self, name: str) -> Cursor | None:
        """How far the named reader has come."""
        sql = "SELECT name, epoch, seq, hash FROM reader_cursors WHERE name = ?"
        row = await self._connections.read(lambda connection: connection.execute(sql, (name,)).fetchone())
        return None if row is None else Cursor(name=row[0], epoch=row[1], seq=row[2], hash=row[3])

    async def open_epoch(self) -> int:
        """Begin the next epoch; events from now on carry its number."""
        return await self._connections.write(self._open_epoch)

    async def tidy(self, work: Callable[[apsw.Connection], T]) -> T:
        """Write what is no part of the journal; a failure is judged as that of an append."""

        def judged(connection: apsw.Connection) -> T:
            if self._broken:
                raise JournalUnavailable("the journal failed to commit before; the process is ending")
            with self._judged():
                return work(connection)

        return await self._connections.write(judged)

    def _open_epoch(self, connection: apsw.Connection) -> int:
        connection.execute("UPDATE journal_heads SET epoch = epoch + 1 WHERE shard = 0")
        self._head, self._at = self._read_head(connection)
        return self._head.epoch

    @staticmethod
    def _read_head(connection: apsw.Connection) -> tuple[Head, datetime]:
        row = connection.execute("SELECT epoch, seq, hash, at FROM journal_heads WHERE shard = 0").fetchone()
        assert row is not None, "the schema puts the first head in place"
        epoch, seq, digest, at = row
        return Head(epoch, seq, digest), datetime.fromisoformat(at)

    def _append(
        self, connection: apsw.Connection, group_id: str, changes: Sequence[Change], now: datetime
    ) -> list[Outcome]:
        if self._broken:
            raise JournalUnavailable("the journal failed to commit before; the process is ending")
        try:
            return self._write(connection, group_id, changes, now, thorough=False)
        except GroupRejected:
            # The group was written before, or a new row is not new: look, and reject that one alone.
            known = connection.execute("SELECT outcomes FROM append_groups WHERE group_id = ?", (group_id,)).fetchone()
            if known is not None:
                return _outcomes_from(known[0])
            return self._write(connection, group_id, changes, now, thorough=True)

    def _write(
        self, connection: apsw.Connection, group_id: str, changes: Sequence[Change], now: datetime, *, thorough: bool
    ) -> list[Outcome]:
        """Look, then write in one statement: nobody else writes to this file in between."""
        try:
            conflicts = conflicts_of(connection, changes, thorough)
        except apsw.Error as error:
            raise JournalUnavailable(f"the database cannot be read: {error}") from error
        kept = [change for number, change in enumerate(changes) if number not in conflicts]
        at = max(now, self._at)
        head, events, outcomes = self._numbered(changes, conflicts, stamp(at))
        if kept:
            forgets = head.seq // FORGET_EVERY != self._head.seq // FORGET_EVERY
            forget_before = stamp(at - GROUP_MEMORY) if forgets else None
            place = (group_id, _outcomes_text(outcomes), head.seq, head.hash, stamp(at), forget_before)
            self._commit(connection, events, kept, place)
            self._head, self._at = head, at
        return outcomes

    def _numbered(
        self, changes: Sequence[Change], conflicts: Mapping[int, Conflict], at: str
    ) -> tuple[Head, list[tuple[object, ...]], list[Outcome]]:
        """The events with their numbers and hashes, where they lead, and each change's outcome."""
        epoch, seq, digest = self._head.epoch, self._head.seq, self._head.hash
        events: list[tuple[object, ...]] = []
        outcomes: list[Outcome] = []
        for number, change in enumerate(changes):
            rejection = conflicts.get(number)
            if rejection is not None:
                outcomes.append(rejection)
                continue
            outcomes.append(Committed(seq + 1 if change.events else 0))
            for event in change.events:
                seq += 1
                text = head_text(epoch, 0, seq, at) + event.tail
                digest = link(digest, text)
                events.append((seq, epoch, at, event.type, event.account_id, event.order_id, text, digest))
        return Head(epoch, seq, digest), events, outcomes

    def _commit(
        self,
        connection: apsw.Connection,
        events: list[tuple[object, ...]],
        changes: Sequence[Change],
        place: tuple[object, ...],
    ) -> None:
        with self._judged():
            parts = [rows.text_array(events) if events else None, *map(rows.arrays, _by_table(changes))]
            connection.execute(APPEND, (*parts, *place))

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """Tell what a failed write means: conflicts, not possible now, or the end of this process's writing."""
        try:
            yield
        except (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError, OverflowError, UnicodeError) as error:
            raise GroupRejected(f"the database conflicts the group: {error}") from error
        except (apsw.FullError, apsw.BusyError, apsw.LockedError) as error:
            raise JournalUnavailable(f"the database conflicts the group: {error}") from error
        except apsw.Error as error:
            # After a failed fsync nobody knows what is on the disk; no later success may hide that.
            self._broken = True
            log.critical("commit failed", error=str(error))
            raise JournalBroken(f"commit failed: {error}") from error


def _by_table(changes: Sequence[Change]) -> list[list[Any]]:
    """The rows in the order of the append's columns; new ones apart, since only those are inserted."""
    orders = [row for change in changes for row in change.orders]
    outbox = [row for change in changes for row in change.outbox]
    return [
        [row for row in orders if row.version == 1],
        [row for row in orders if row.version > 1],
        [row for row in outbox if row.version == 1],
        [row for row in outbox if row.version > 1],
        [row for change in changes for row in change.keys],
        [row for change in changes for _, row in change.position_moves()],
        [row for change in changes for row in change.executions],
        [row for change in changes for row in change.cursors],
    ]


class _StoredOutcome(msgspec.Struct, array_like=True):
    first_seq: int | None
    key: KeyEntry | None = None


def _outcomes_text(outcomes: Sequence[Outcome]) -> str:
    stored = [
        _StoredOutcome(outcome.first_seq) if isinstance(outcome, Committed) else _StoredOutcome(None, outcome.key)
        for outcome in outcomes
    ]
    return msgspec.json.encode(stored).decode()


def _outcomes_from(text: str) -> list[Outcome]:
    stored = msgspec.json.decode(text, type=list[_StoredOutcome])
    return [Conflict(one.key) if one.first_seq is None else Committed(one.first_seq) for one in stored]
