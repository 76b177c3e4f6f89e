"""The books on SQLite: posts pages of entries in one commit each, and reads them."""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import apsw
from msgspec.structs import replace

from switchyard.adapters.backoffice import schema
from switchyard.adapters.backoffice.rows import (
    Row,
    Tally,
    Written,
    account_of,
    add_amounts,
    adoption_of,
    check_owned,
    entered_before,
    holding_decoder,
    json_text,
    order_decoder,
    position_decoder,
)
from switchyard.adapters.files.durable import lock_beside
from switchyard.adapters.sqlite.connections import Connections
from switchyard.domain.books.books import Books
from switchyard.domain.books.entries import Adoption, HaltedAccount, LedgerEntry, parse_entry
from switchyard.domain.books.fold import Refold
from switchyard.domain.books.holdings import Holding, Target, key_of, waits_for
from switchyard.domain.books.manual import ManualEntry, check_manual, entry_id_of_manual, manual_entry
from switchyard.domain.books.postings import (
    Executions,
    ReadEvent,
    Touched,
    account_ids,
    executions,
    order_ids,
    parts_of,
    read_events,
    revised_entry_id,
    touched,
    touched_by,
    touched_by_late,
)
from switchyard.domain.errors import AlreadyRunning, CannotStart, SchemaMismatch
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.lines import BusEvent, SourcePosition, stamp
from switchyard.ports.books import (
    ENTRIES_MAX,
    Balance,
    Claim,
    Entered,
    EntryFilter,
    EntryKey,
    LedgerBroken,
    LedgerUnavailable,
    Posted,
    SourceState,
    StoredEntry,
)


def claim_source(connection: apsw.Connection, source: str, start: SourcePosition) -> Claim:
    """Raise the source's generation."""
    with classified_errors(), connection:
        connection.execute(schema.CLAIM, (source, json_text(start)))
        position, generation = connection.execute(schema.SOURCE, (source,)).get
    return Claim(source, generation, position_decoder.decode(position))


def post(connection: apsw.Connection, claim: Claim, events: Sequence[BusEvent], position: SourcePosition) -> Posted:
    """Book a page."""
    tally = Tally()
    with classified_errors(), connection:
        check_owned(claim, connection.execute(schema.SOURCE, (claim.source,)).get)
        adoptions = list_adoptions(connection)
        read = read_events(events)
        for part in parts_of(read, _waited_for(connection, executions(read))):
            books = _booked(connection, part.events, adoptions)
            _write(connection, books)
            tally.add(books)
            if part.settles:
                _settle(connection, books, tally)
        read_at = events[-1].event.at if events else None
        moved = json_text(position), None if read_at is None else stamp(read_at), claim.source
        connection.execute(schema.MOVE, moved)
    return tally.posted(replace(claim, position=position), read_at)


def enter(connection: apsw.Connection, wanted: ManualEntry, at: datetime) -> Entered:
    """Book an entry by a person."""
    check_manual(wanted)
    with classified_errors(), connection:
        of_key = connection.execute(schema.STORED_OF_KEY, (wanted.account_id, wanted.key)).fetchone()
        of_id = connection.execute(schema.STORED_OF, (entry_id_of_manual(wanted),)).fetchone()
        if (before := entered_before(wanted, of_key, of_id)) is not None:
            return before
        target = None if wanted.reverses is None else _target(connection, wanted.reverses)
        books = _books_of(connection, wanted.account_id)
        if wanted.type != "Reversal":
            _load(connection, books, touched_by(manual_entry(wanted, seq=0, at=at)))
        elif target is not None and target.entry is not None:
            _load(connection, books, touched_by(target.entry))
            _load_order(connection, books, target.entry.order_id)
        new = books.enter(wanted, at, target)
        _write(connection, books)
    return Entered(StoredEntry(new.entry.number, new.line.text, new.line.hash), False)


def carry(connection: apsw.Connection, entry: LedgerEntry) -> None:
    """Book an entry of other books."""
    with classified_errors(), connection:
        books = _books_of(connection, entry.account_id)
        _load_order(connection, books, entry.order_id)
        target = None if entry.reverses is None else _target(connection, entry.reverses)
        _load(connection, books, touched_by(entry))
        books.carry(entry, target)
        _write(connection, books)
        if entry.by is None:  # an orphan of the other books is one of these
            number = books.entries[-1].entry.number
            connection.execute(schema.ADD_ORPHAN, (entry.account_id, number, entry.entry_id))


def adopt(connection: apsw.Connection, adoption: Adoption, source: str, position: SourcePosition) -> int:
    """Follow the journal of a new epoch."""
    with classified_errors(), connection:
        row = adoption.epoch, adoption.after_seq, adoption.first_seq, adoption.by, adoption.reason, stamp(adoption.at)
        connection.execute(schema.ADD_ADOPTION, row)
        connection.execute(schema.ADD_ORPHANS, (adoption.after_seq, adoption.first_seq))
        orphans = connection.changes()
        connection.execute(schema.RESET, (source, json_text(position)))
    return orphans


def list_adoptions(connection: apsw.Connection) -> list[Adoption]:
    """The adoptions by epoch."""
    return [adoption_of(row, time_of) for row in connection.execute(schema.ADOPTIONS)]


def time_of(text: str | None) -> datetime | None:
    """The time of a column."""
    return None if text is None else datetime.fromisoformat(text)


@contextmanager
def classified_errors() -> Iterator[None]:
    """Raise LedgerUnavailable where nothing was written and a repeat may help, LedgerBroken otherwise."""
    try:
        yield
    except (apsw.FullError, apsw.BusyError, apsw.LockedError) as error:
        raise LedgerUnavailable(f"the books cannot be written, nothing was: {error}") from error
    except apsw.Error as error:
        raise LedgerBroken(f"the books cannot be written: {error}") from error


def _booked(connection: apsw.Connection, events: Sequence[ReadEvent], adoptions: Sequence[Adoption]) -> Books:
    """The books of this part of a page, with the rows that it touches, after its events."""
    accounts = connection.execute(schema.FIND_ACCOUNTS, (json_text(sorted(account_ids(events))),))
    found = [account_of(row, time_of) for row in accounts]
    orders = connection.execute(schema.FIND_ORDERS, (json_text(sorted(order_ids(events))),))
    books = Books(found, [order_decoder.decode(body) for (body,) in orders], adoptions)
    _load(connection, books, touched(events, books.orders))
    for event in events:
        target = None
        revised = revised_entry_id(event, books.orders)
        if revised is not None:
            target = _target(connection, revised)
            if target.entry is not None:
                _load(connection, books, touched_by(target.entry))
        books.read(event, target)
    return books


def _waited_for(connection: apsw.Connection, reported: Executions) -> Executions:
    """Those of the executions that a memo of a revision waits for."""
    if not reported:
        return reported
    found = connection.execute(schema.FIND_WAITED_FOR, (json_text(sorted(reported)),))
    return frozenset((account, exec_id) for account, exec_id in found)


def _settle(connection: apsw.Connection, books: Books, tally: Tally) -> None:
    """Carry out the revisions that waited for the new fills, and those that waited for the fills that these book."""
    fills = deque(books.fills)
    while fills:
        fill = fills.popleft()
        rows = connection.execute(schema.WAITING, (fill.account_id, fill.exec_id)).fetchall()
        for memo in [parse_entry(str(text)) for (text,) in rows]:
            if not waits_for(memo, fill):
                continue
            target, late = _target(connection, fill.entry_id), _books_of(connection, fill.account_id)
            _load_order(connection, late, fill.order_id)
            if target.entry is not None:
                _load(connection, late, touched_by_late(target.entry, memo))
            late.settle(memo, fill, target)
            _write(connection, late)
            tally.add(late)
            fills.extend(late.fills)


def _books_of(connection: apsw.Connection, account: AccountId) -> Books:
    rows = connection.execute(schema.FIND_ACCOUNTS, (json_text([account]),))
    return Books([account_of(row, time_of) for row in rows])


def _load(connection: apsw.Connection, books: Books, wanted: Touched) -> None:
    """Read the rows that the next entries touch."""
    if wanted.entry_ids:
        ids = json_text(sorted(wanted.entry_ids))
        books.booked |= {entry_id for (entry_id,) in connection.execute(schema.FIND_ENTRIES, (ids,))}
    if wanted.holdings:
        for (body,) in connection.execute(schema.FIND_POSITIONS, (json_text(sorted(wanted.holdings)),)):
            holding = holding_decoder.decode(body)
            books.holdings[key_of(holding)] = holding
    if wanted.balances:
        rows = connection.execute(schema.FIND_BALANCES, (json_text(sorted(wanted.balances)),))
        for account, name, unit, amount in rows:
            books.balances[account, name, unit] = Decimal(amount)


def _load_order(connection: apsw.Connection, books: Books, order_id: OrderId) -> None:
    for (body,) in connection.execute(schema.FIND_ORDERS, (json_text([order_id]),)):
        books.orders[order_id] = order_decoder.decode(body)


def _target(connection: apsw.Connection, entry_id: str) -> Target:
    """The entry that a reversal takes back: the newest of an execution that was corrected before."""
    while (row := connection.execute(schema.REVERSAL_OF, (entry_id,)).fetchone()) is not None:
        (replacement_id,) = row
        if replacement_id is None:
            break
        entry_id = replacement_id
    text = connection.execute(schema.ENTRY_OF, (entry_id,)).get
    if text is None:
        return Target()
    entry = parse_entry(text)
    if row is not None:
        return Target(entry, True)
    refold = Refold(entry)
    if refold.is_needed:
        for (other,) in connection.execute(schema.UNREVERSED, (entry.account_id, entry.symbol)):
            refold.add(parse_entry(other))
    return refold.target()


def _write(connection: apsw.Connection, books: Books) -> None:
    written = Written(books, stamp, date.isoformat)
    for sql, rows in (
        (schema.ADD_ENTRIES, written.entries),
        (schema.ADD_LEGS, map(_texts, written.legs)),
        (schema.SET_ACCOUNTS, written.accounts),
        (schema.SET_ORDERS, written.orders),
        (schema.SET_POSITIONS, written.positions),
        (schema.SET_BALANCES, map(_texts, written.balances)),
        (schema.SET_DAY_POSITIONS, written.day_positions),
        (schema.SET_DAY_BALANCES, map(_texts, written.day_balances)),
        (schema.ADD_RESULTS, map(_texts, written.results)),
        (schema.ADD_REVERSALS, written.reversals),
    ):
        connection.executemany(sql, rows)
    if written.confirmed:
        connection.execute(schema.CONFIRM, (json_text(written.confirmed),))


def _texts(row: Row) -> Row:
    """The row with its amounts as texts."""
    return tuple([str(value) if type(value) is Decimal else value for value in row])


T = TypeVar("T")


class SqliteLedger:
    """ports.books.Ledger on one file."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    @classmethod
    async def open(cls, path: Path) -> "SqliteLedger":
        """Open the file, or create it, and lock it for this process."""
        return await asyncio.to_thread(cls._open, path)

    @classmethod
    def _open(cls, path: Path) -> "SqliteLedger":
        try:
            connections = Connections(path)
        except AlreadyRunning:
            raise _kept_elsewhere(path) from None
        except apsw.Error as error:
            raise _unreadable(path, error) from error
        try:
            _prepare(connections.writer, path)
            connections.writer.create_scalar_function("add_amounts", _add_amounts, 2, deterministic=True)
            return cls(connections)
        except apsw.Error as error:
            connections.close()
            raise _unreadable(path, error) from error
        except BaseException:
            connections.close()
            raise

    async def close(self) -> None:
        """Finish the write in progress and release the file."""
        await asyncio.to_thread(self._connections.close)

    async def claim(self, source: str, start: SourcePosition) -> Claim:
        """Raise the source's generation and return how far it was read."""
        return await self._connections.write(lambda connection: claim_source(connection, source, start))

    async def post(self, claim: Claim, events: Sequence[BusEvent], position: SourcePosition) -> Posted:
        """Book the events and move the position, in one transaction; durable on return."""
        return await self._connections.write(lambda connection: post(connection, claim, events, position))

    async def sources(self) -> list[SourceState]:
        """Every source that was ever claimed."""
        rows = await self._rows(schema.SOURCES, ())
        return [
            SourceState(source, position_decoder.decode(position), generation, time_of(read_at))
            for source, position, generation, read_at in rows
        ]

    async def reset(self, source: str, start: SourcePosition) -> None:
        """Have the source read again from `start`."""

        def work(connection: apsw.Connection) -> None:
            with classified_errors(), connection:
                connection.execute(schema.RESET, (source, json_text(start)))

        await self._connections.write(work)

    async def count(self) -> int:
        """The number of entries of all accounts."""
        [(count,)] = await self._rows(schema.COUNT, ())
        return int(count)

    async def halted(self, limit: int) -> list[HaltedAccount]:
        """The accounts that have halted."""
        return [HaltedAccount(*row) for row in await self._rows(schema.HALTED, (limit,))]

    async def entries(self, wanted: EntryFilter) -> list[StoredEntry]:
        """Entries in order of their numbers."""
        sql, values = _entries_query(wanted)
        rows = await self._rows(sql, values)
        found = [StoredEntry(*row) for row in rows]
        return found[::-1] if wanted.newest else found

    async def strategy_entries(
        self, account: AccountId, strategy: str, after: EntryKey | None, limit: int
    ) -> list[StoredEntry]:
        """Entries of an account's strategy by time and number."""
        key = ("", 0) if after is None else (stamp(after.at), after.number)
        rows = await self._rows(schema.ENTRIES_OF_STRATEGY, (account, strategy, *key, min(limit, ENTRIES_MAX)))
        return [StoredEntry(*row) for row in rows]

    async def holdings(
        self, account: AccountId, after_symbol: str, after_currency: str, limit: int, *, flat: bool = True
    ) -> list[Holding]:
        """Positions by symbol and currency."""
        rows = await self._rows(schema.POSITIONS_OF, (account, after_symbol, after_currency, flat, limit))
        return [holding_decoder.decode(body) for (body,) in rows]

    async def balances(self, account: AccountId, after_unit: str, limit: int) -> list[Balance]:
        """The money accounts of the next currencies."""
        rows = await self._rows(schema.BALANCES_OF, (account, after_unit, limit))
        return [Balance(name, unit, Decimal(amount)) for name, unit, amount in rows]

    async def enter(self, wanted: ManualEntry, at: datetime) -> Entered:
        """Book an entry by a person."""
        return await self._connections.write(lambda connection: enter(connection, wanted, at))

    async def carry(self, entry: LedgerEntry) -> None:
        """Book an entry of other books."""
        await self._connections.write(lambda connection: carry(connection, entry))

    async def adopt(self, adoption: Adoption, source: str, position: SourcePosition) -> int:
        """Follow the journal of a new epoch."""
        return await self._connections.write(lambda connection: adopt(connection, adoption, source, position))

    async def adoptions(self) -> list[Adoption]:
        """The adoptions by epoch."""
        return await self.read(list_adoptions)

    async def orphans(self, after: tuple[AccountId, int], limit: int) -> list[StoredEntry]:
        """Entries that the adopted journal does not have."""
        return [StoredEntry(*row) for row in await self._rows(schema.ORPHANS, (*after, min(limit, ENTRIES_MAX)))]

    async def carried(self, account: AccountId, after: int, limit: int) -> list[StoredEntry]:
        """Entries of an account that a rebuild carries over."""
        rows = await self._rows(schema.CARRIED, (account, after, min(limit, ENTRIES_MAX)))
        return [StoredEntry(*row) for row in rows]

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run a query of a check in a reader thread."""
        return await self._connections.read(work)

    async def _rows(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return await self.read(lambda connection: connection.execute(sql, values).fetchall())


@contextmanager
def locked_books(path: Path) -> Iterator[None]:
    """Keep every other process from the file, without opening it."""
    lock = lock_beside(path)
    if lock is None:
        raise _kept_elsewhere(path)
    try:
        yield
    finally:
        os.close(lock)


def _kept_elsewhere(path: Path) -> AlreadyRunning:
    return AlreadyRunning(
        f"another process keeps the books in {path}: stop it, or set SWITCHYARD_BACKOFFICE=false for this one"
    )


def _unreadable(path: Path, error: apsw.Error) -> CannotStart:
    return CannotStart(
        f"{path} cannot be read: {error}. Put a copy of it back, or run `switchyard backoffice rebuild`, which builds "
        "the books again from the journal"
    )


def _prepare(connection: apsw.Connection, path: Path) -> None:
    """Create the schema in a new file; another schema is rejected."""
    version = connection.pragma("user_version")
    if version == schema.SCHEMA_VERSION:
        return
    if version or connection.execute("SELECT count(*) FROM sqlite_schema").get:
        raise SchemaMismatch(
            f"{path} has no books of this version (schema {version}, needed {schema.SCHEMA_VERSION}): move it away, "
            "and the books are built again from the journal"
        )
    with connection:
        connection.execute(schema.SCHEMA)
        connection.pragma("user_version", schema.SCHEMA_VERSION)


def _add_amounts(*amounts: Any) -> str:
    first, second = amounts
    return add_amounts(first, second)


def _entries_query(wanted: EntryFilter) -> tuple[str, list[Any]]:
    conditions = ["account_id = ?", "number > ?"]
    values: list[Any] = [wanted.account_id, wanted.after]
    if wanted.before is not None:
        conditions.append("number < ?")
        values.append(wanted.before)
    if wanted.order_id is not None:
        conditions.append("order_id = ?")
        values.append(wanted.order_id)
    if wanted.type is not None:
        conditions.append("type = ?")
        values.append(wanted.type)
    if wanted.since is not None:
        # `reached_at` never decreases with the number: one search of the index, not a filter over all entries.
        conditions.append(
            "at >= ? AND number >= (SELECT number FROM entries INDEXED BY entries_by_time "
            "WHERE account_id = ? AND reached_at >= ? ORDER BY reached_at, number LIMIT 1)"
        )
        values += [stamp(wanted.since), wanted.account_id, stamp(wanted.since)]
    if wanted.day is not None:
        conditions.append("reached_at >= ? AND reached_at < ?")
        values += [wanted.day.isoformat(), (wanted.day + timedelta(days=1)).isoformat()]
    order = "DESC" if wanted.newest else "ASC"
    # An order has few entries, a type or an account may have millions.
    index = ""
    if wanted.order_id is not None:
        index = "INDEXED BY entries_of_order "
    elif wanted.day is not None:
        index = "INDEXED BY entries_by_time "
    elif wanted.type is not None:
        index = "INDEXED BY entries_of_type "
    sql = (
        f"SELECT number, text, hash FROM entries {index}"
        f"WHERE {' AND '.join(conditions)} ORDER BY number {order} LIMIT ?"
    )
    return sql, [*values, min(wanted.limit, ENTRIES_MAX)]
