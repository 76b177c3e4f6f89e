"""The journal on SQLite: appends groups in the writer thread, loads states, reads events; its time and relay leases."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import apsw
import msgspec
import structlog

from switchyard.adapters.sqlite import identity, rows
from switchyard.adapters.sqlite.append import (
    APPEND,
    LINES,
    SELECT_BY_AMEND_ID,
    SELECT_BY_CLIENT_ID,
    SELECT_OUTBOX_OF,
    SELECT_POSITIONS,
    SELECT_STATES,
    Claims,
    Expectations,
    NumberedEvent,
    has_amend,
    outcomes_from,
    outcomes_text,
    rows_of,
)
from switchyard.adapters.sqlite.connections import Connections
from switchyard.adapters.system_clock import boot_id
from switchyard.adapters.tables import EVENT_COLUMNS, SqlRelayLeases
from switchyard.domain.accounts.positions import Position, PositionKey
from switchyard.domain.errors import GroupRejected, HistoryMismatch, JournalBroken, JournalUnavailable
from switchyard.domain.ids import AccountId, Installation, OrderId, VenueClientOrderId
from switchyard.domain.journal.changes import Change, Committed, Conflict, Cursor, Outcome, check_kills_alone
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.journal.lines import GENESIS, head_text, link, stamp
from switchyard.domain.orders.amends import by_amend_id
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.risk.exposure import AccountExposure, CurrencyReserve, SymbolExposure
from switchyard.ports.clock import Clock, boot_seconds
from switchyard.ports.journal import PAGE_MAX, Epoch, Head, Lines, StoredTime, TimeReading

T = TypeVar("T")
log = structlog.get_logger()

# A lost answer is asked for again within seconds; an hour leaves time for debugging.
GROUP_RETENTION = timedelta(hours=1)
# Old groups are deleted once per this many events, because each delete adds work to a commit.
DELETE_GROUPS_EVERY = 4_096


class SqliteJournal:
    """ports.journal.Journal on one file in one process."""

    history = ""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._head, self._at = self._read_head(connections.writer)
        self._expectations = Expectations()
        self._claims = Claims()
        self._broken = False

    @property
    def newest_event_at(self) -> datetime:
        """The date of the newest event; long past while the journal is empty."""
        return self._at

    async def load(self, order_ids: Sequence[OrderId]) -> Mapping[OrderId, OrderState]:
        """The orders that exist, each with all of its outbox rows."""
        ids = rows.json_array(order_ids)

        def select(connection: apsw.Connection) -> dict[str, OrderState]:
            with connection:  # one snapshot for the orders and their outbox rows
                orders = connection.execute(SELECT_STATES, (ids,)).fetchall()
                outbox = connection.execute(SELECT_OUTBOX_OF, (ids,)).fetchall()
            return rows.states(orders, outbox)

        states = await self._connections.read(select)
        return {OrderId(order_id): state for order_id, state in states.items()}

    async def load_by_client_order_id(
        self, ids: Sequence[VenueClientOrderId]
    ) -> Mapping[VenueClientOrderId, OrderState]:
        """The same, by venue client order id or the id of an amend."""

        def select(sql: str, client_ids: Sequence[str], connection: apsw.Connection) -> dict[str, OrderState]:
            with connection:
                orders = connection.execute(sql, (rows.json_array(client_ids),)).fetchall()
                order_ids = rows.json_array([row[0] for row in orders])
                outbox = connection.execute(SELECT_OUTBOX_OF, (order_ids,)).fetchall()
            return rows.states(orders, outbox)

        states = await self._connections.read(partial(select, SELECT_BY_CLIENT_ID, ids))
        found = {state.order.venue_client_order_id: state for state in states.values()}
        others = [client_id for client_id in ids if client_id not in found]
        if others:
            states = await self._connections.read(partial(select, SELECT_BY_AMEND_ID, others))
            found |= by_amend_id(states.values(), others)
        return found

    async def load_positions(self, keys: Sequence[PositionKey]) -> Mapping[PositionKey, Position]:
        """Those of the named positions that ever had a fill."""
        keys_json = rows.json_array(keys)
        positions = await self._connections.read(
            lambda connection: list(map(rows.position, connection.execute(SELECT_POSITIONS, (keys_json,))))
        )
        return {position.key: position for position in positions}

    async def symbol_exposure(self, account: AccountId, symbol: str, *, fresh: bool = False) -> SymbolExposure:
        """An account in one symbol; without `fresh` it may have claims of a group that is being committed."""
        book = self._claims.book
        if book is None or fresh:
            return await self._connections.write(
                lambda connection: self._claims.loaded(connection).symbol(account, symbol)
            )
        return book.symbol(account, symbol)

    async def account_exposure(self, account: AccountId, since: OrderId | None = None) -> AccountExposure:
        """What the limits of an account look at, as of the last commit."""
        return await self._connections.write(lambda connection: self._claims.loaded(connection).copy_of(account, since))

    async def reserved(self) -> Mapping[str, CurrencyReserve]:
        """What the open orders of all accounts reserve; empty before the first claim of a limit."""
        book = self._claims.book
        return {} if book is None else book.reserved()

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Commit a group and return the outcome of each change; durable when this returns."""
        assert shard == 0, "an embedded journal has one shard"
        check_kills_alone(changes)
        return await self._connections.write(lambda connection: self._append(connection, group_id, changes, now))

    async def read(self, shard: int, after_seq: int, limit: int) -> list[JournalEvent]:
        """The next events in order, at most a page."""
        sql = f"SELECT {EVENT_COLUMNS} FROM journal WHERE seq > ? ORDER BY seq LIMIT ?"
        page = (after_seq, min(limit, PAGE_MAX))
        return await self._connections.read(
            lambda connection: list(map(rows.journal_event, connection.execute(sql, page)))
        )

    async def lines(self, shard: int, after_seq: int, limit: int) -> Lines | None:
        """The same events as audit lines, concatenated by the database; None when there are none."""

        def select(connection: apsw.Connection) -> Lines | None:
            with connection:
                row = connection.execute(LINES, (after_seq, min(limit, PAGE_MAX))).fetchone()
                assert row is not None, "an aggregate always returns a row"
                text, count, last_seq = row
                if not count:
                    return None
                last = connection.execute("SELECT epoch, seq, hash FROM journal WHERE seq = ?", (last_seq,)).fetchone()
            assert last is not None, "the aggregate read it in the same snapshot"
            return Lines(text.encode(), count, Head(*last))

        return await self._connections.read(select)

    async def head(self, shard: int) -> Head:
        """The place of the newest event."""
        head, _ = await self._connections.read(self._read_head)
        return head

    async def cursor(self, name: str) -> Cursor | None:
        """The position of the named reader."""
        sql = "SELECT name, epoch, seq, hash FROM reader_cursors WHERE name = ?"
        row = await self._connections.read(lambda connection: connection.execute(sql, (name,)).fetchone())
        return None if row is None else Cursor(name=row[0], epoch=row[1], seq=row[2], hash=row[3])

    async def confirm(self) -> None:
        """Do nothing: what can be read is flushed to the only file."""

    def seen(self, shard: int) -> Head | None:
        """The head after the last append or, before that, when the file was opened."""
        return self._head

    async def last_event(self, shard: int, up_to_seq: int) -> Head:
        """The place of the last event up to this number."""
        sql = "SELECT epoch, seq, hash FROM journal WHERE seq <= ? ORDER BY seq DESC LIMIT 1"
        row = await self._connections.read(lambda connection: connection.execute(sql, (up_to_seq,)).fetchone())
        return Head(1, 0, GENESIS) if row is None else Head(*row)

    async def epochs(self, shard: int) -> list[Epoch]:
        """All epochs, the oldest first."""
        return await self._connections.read(identity.epochs)

    async def installation(self) -> Installation:
        """The identity that was made with the schema."""
        return await self._connections.read(identity.installation)

    async def open_epoch(self, above_epoch: int, above_seq: int, now: datetime, marker: Cursor | None = None) -> Head:
        """Start an epoch above both numbers and above all of the database; later events carry it."""

        def open_above(connection: apsw.Connection) -> Head:
            self._expectations.forget()
            self._claims.forget()
            identity.open_epoch(connection, above_epoch, above_seq, now, marker)
            self._head, self._at = self._read_head(connection)
            return self._head

        return await self._connections.write(open_above)

    async def maintain(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run a write that is not part of the journal; its errors are classified like those of an append."""

        def classified(connection: apsw.Connection) -> T:
            self._check_not_broken()
            with self._classified_errors():
                return work(connection)

        return await self._connections.write(classified)

    @staticmethod
    def _read_head(connection: apsw.Connection) -> tuple[Head, datetime]:
        row = connection.execute("SELECT epoch, seq, hash, at FROM journal_heads WHERE shard = 0").fetchone()
        assert row is not None, "the schema inserts the first head"
        epoch, seq, digest, at = row
        return Head(epoch, seq, digest), datetime.fromisoformat(at)

    def _append(
        self, connection: apsw.Connection, group_id: str, changes: Sequence[Change], now: datetime
    ) -> list[Outcome]:
        self._check_not_broken()
        try:
            return self._write(connection, group_id, changes, now, thorough=has_amend(changes))
        except GroupRejected:
            # Either the group was committed before, or a row of version 1 exists already: check the new rows too, and
            # reject only the changes that conflict.
            if outcomes := self._repeated(connection, group_id):
                return outcomes
            return self._write(connection, group_id, changes, now, thorough=True)

    def _write(
        self, connection: apsw.Connection, group_id: str, changes: Sequence[Change], now: datetime, *, thorough: bool
    ) -> list[Outcome]:
        """Check the versions, then write in one statement; no other connection writes to this file in between."""
        try:
            conflicts = self._expectations.conflicts_of(connection, changes, thorough)
            self._claims.reserve(connection, changes, conflicts)
            conflicts.update(self._expectations.repeats_among(connection, changes, conflicts))
            # A repeated group is judged on totals that it is part of. Without a conflict the write finds that out.
            is_doubtful = conflicts and any(change.claims for change in changes)
            if is_doubtful and (outcomes := self._repeated(connection, group_id)):
                return outcomes
        except apsw.Error as error:
            self._claims.forget()  # some of the claims may be reserved
            raise JournalUnavailable(f"the database cannot be read: {error}") from error
        kept = [change for number, change in enumerate(changes) if number not in conflicts]
        at = max(now, self._at)
        head, events, outcomes = self._numbered(changes, conflicts, stamp(at))
        if kept:
            deletes_groups = head.seq // DELETE_GROUPS_EVERY != self._head.seq // DELETE_GROUPS_EVERY
            with self._claims.kept_if_written(kept), self._classified_errors():
                group = rows_of(kept, events, thorough)._replace(
                    group_id=group_id,
                    outcomes=outcomes_text(outcomes),
                    seq=head.seq,
                    hash=head.hash,
                    at=stamp(at),
                    delete_groups_before=stamp(at - GROUP_RETENTION) if deletes_groups else None,
                    seen_epoch=self._head.epoch,
                    seen_seq=self._head.seq,
                    seen_hash=self._head.hash,
                )
                connection.execute(APPEND, group)
            self._head, self._at = head, at
            self._expectations.note_written(kept)
            self._claims.note_written(kept)
        return outcomes

    def _repeated(self, connection: apsw.Connection, group_id: str) -> list[Outcome]:
        """The outcomes of a group that was committed before; empty for a new one."""
        outcomes = _stored_outcomes(connection, group_id)
        if outcomes:
            self._claims.forget()  # its claims were reserved, or taken back, a second time
        return outcomes

    def _numbered(
        self, changes: Sequence[Change], conflicts: Mapping[int, Conflict], at: str
    ) -> tuple[Head, list[NumberedEvent], list[Outcome]]:
        """The new head, the events with their numbers and hashes, and the outcome of each change."""
        epoch, seq, digest = self._head.epoch, self._head.seq, self._head.hash
        events: list[NumberedEvent] = []
        outcomes: list[Outcome] = []
        for number, change in enumerate(changes):
            conflict = conflicts.get(number)
            if conflict is not None:
                outcomes.append(conflict)
                continue
            outcomes.append(Committed(seq + 1 if change.events else 0))
            for event in change.events:
                seq += 1
                text = head_text(epoch, 0, seq, at) + event.tail
                digest = link(digest, text)
                events.append(NumberedEvent(seq, event, digest))
        return Head(epoch, seq, digest), events, outcomes

    def _check_not_broken(self) -> None:
        if self._broken:
            raise JournalUnavailable("an earlier commit failed on the disk: the process is stopping")

    @contextmanager
    def _classified_errors(self) -> Iterator[None]:
        """Raise GroupRejected for bad values, JournalUnavailable when nothing was written, JournalBroken otherwise."""
        try:
            yield
        except apsw.ConstraintError as error:
            if identity.ANOTHER_HISTORY in str(error):
                raise HistoryMismatch(
                    f"the journal's head is not epoch {self._head.epoch}, seq {self._head.seq}, which this process saw "
                    "last: another database is in its place, and nothing was written"
                ) from error
            raise GroupRejected(f"commit failed: group rejected by the database: {error}") from error
        except (apsw.MismatchError, apsw.TooBigError, OverflowError, UnicodeError) as error:
            raise GroupRejected(f"commit failed: group rejected by the database: {error}") from error
        except (apsw.FullError, apsw.BusyError, apsw.LockedError) as error:
            raise JournalUnavailable(f"commit failed, nothing was written: {error}") from error
        except apsw.Error as error:
            # After a failed fsync the content of the disk is unknown, and a later commit that succeeds must not hide
            # it.
            self._broken = True
            log.critical("commit_failed", error=str(error))
            raise JournalBroken(f"commit failed: {error}") from error


def _stored_outcomes(connection: apsw.Connection, group_id: str) -> list[Outcome]:
    """The outcomes of a group that was committed before; empty for a new one."""
    stored = connection.execute("SELECT outcomes FROM append_groups WHERE group_id = ?", (group_id,)).fetchone()
    return [] if stored is None else outcomes_from(stored[0])


_READ = "SELECT ahead_seconds, written_at, boot_id, boot_seconds, jumped_at, stepped_seconds FROM steady_clock"
_STORE = """
INSERT OR REPLACE INTO steady_clock
    (only_row, ahead_seconds, written_at, boot_id, boot_seconds, jumped_at, stepped_seconds)
VALUES (1, ?, ?, ?, ?, ?, ?)
"""


class SqliteTime:
    """ports.journal.DatabaseTime on SQLite.

    The process that writes is the only one that changes the row, and reads it once. One that only reads (`follows`)
    takes its time from the row, carried on to now by the machine's clock.
    """

    def __init__(self, connections: Connections, journal: SqliteJournal, clock: Clock, *, follows: bool) -> None:
        self._connections = connections
        self._journal = journal
        self._clock = clock
        self.is_shared = follows
        self._stored = _stored_time(connections.writer)

    async def read(self) -> TimeReading:
        """The machine's time, the journal's newest date and the row."""
        if self.is_shared:
            return await self._read_followed()
        return TimeReading(self._clock.now(), self._journal.newest_event_at, self._stored)

    async def _read_followed(self) -> TimeReading:
        """The same, with the row as the other process would store it now."""
        stored = await self._connections.read(_stored_time)
        wall, ticks = self._clock.now(), boot_seconds()
        if stored is not None and stored.boot_id == boot_id():
            now = stored.written_at + stored.ahead + timedelta(seconds=ticks - stored.boot_seconds)
            stored = msgspec.structs.replace(stored, ahead=now - wall, written_at=wall, boot_seconds=ticks)
        return TimeReading(wall, None, stored)

    async def store(self, time: StoredTime, *, read: StoredTime | None) -> bool:
        """Replace the row."""
        if self.is_shared:
            return True
        if read != self._stored:
            return False
        jumped_at = None if time.jumped_at is None else stamp(time.jumped_at)
        values = (
            time.ahead.total_seconds(),
            stamp(time.written_at),
            time.boot_id,
            time.boot_seconds,
            jumped_at,
            time.stepped_ahead.total_seconds(),
        )
        await self._journal.maintain(lambda connection: connection.execute(_STORE, values).fetchall())
        self._stored = time
        return True


def _stored_time(connection: apsw.Connection) -> StoredTime | None:
    row = connection.execute(_READ).fetchone()
    if row is None:
        return None
    ahead_seconds, written_at, boot_id, boot_seconds, jumped_at, stepped_seconds = row
    return StoredTime(
        ahead=timedelta(seconds=ahead_seconds),
        written_at=datetime.fromisoformat(written_at),
        boot_id=boot_id,
        boot_seconds=boot_seconds,
        jumped_at=None if jumped_at is None else datetime.fromisoformat(jumped_at),
        stepped_ahead=timedelta(seconds=stepped_seconds),
    )


class SqliteRelayLeases(SqlRelayLeases):
    """ports.bus.RelayLeases on SQLite; one process, so a claim always succeeds."""

    def __init__(self, connections: Connections, journal: SqliteJournal) -> None:
        self._connections = connections
        self._journal = journal

    async def _read(self, sql: str, *values: Any) -> Sequence[Sequence[Any]]:
        given = rows.parameters(values)
        return await self._connections.read(lambda connection: connection.execute(sql, given).fetchall())

    async def _write(self, sql: str, *values: Any) -> Sequence[Sequence[Any]]:
        given = rows.parameters(values)
        return await self._journal.maintain(lambda connection: connection.execute(sql, given).fetchall())
