"""The ledger in a SQLite file of its own, for one process; written in one thread, read in others."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec

from switchyard.adapters.backoffice import schema
from switchyard.adapters.files.lock import lock_beside
from switchyard.adapters.sqlite.connections import Connections
from switchyard.domain.bus import BusEvent, Place
from switchyard.domain.chain import stamp
from switchyard.domain.errors import AlreadyRunning, CannotStart, HistoryMismatch, SchemaMismatch
from switchyard.domain.ids import AccountId
from switchyard.domain.ledger.bookable import bookable
from switchyard.domain.ledger.books import Books, order_ids, touched
from switchyard.domain.ledger.entries import LedgerHead
from switchyard.domain.ledger.holdings import Holding
from switchyard.domain.ledger.orders import BookedOrder
from switchyard.ports.ledger import (
    ENTRIES_MAX,
    Balance,
    EntryFilter,
    LedgerBroken,
    LedgerState,
    LedgerUnavailable,
    Posted,
    StoredEntry,
)

T = TypeVar("T")

_order = msgspec.json.Decoder(BookedOrder)
_holding = msgspec.json.Decoder(Holding)


class SqliteLedger:
    """ports.ledger.Ledger on one file."""

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

    async def state(self) -> LedgerState:
        """How far the ledger is."""
        return await self._connections.write(_state)

    async def post(self, after: Place, events: Sequence[BusEvent]) -> Posted:
        """Book the events and move the place, in one transaction; durable on return."""
        return await self._connections.write(lambda connection: _post(connection, after, events))

    async def entries(self, wanted: EntryFilter) -> list[StoredEntry]:
        """Entries in order of their numbers."""
        sql, values = _entries_query(wanted)
        rows = await self._rows(sql, values)
        found = [StoredEntry(*row) for row in rows]
        return found[::-1] if wanted.newest else found

    async def holdings(
        self, account: AccountId, after_symbol: str, after_currency: str, limit: int, *, flat: bool = True
    ) -> list[Holding]:
        """Positions by symbol and currency."""
        rows = await self._rows(schema.POSITIONS_OF, (account, after_symbol, after_currency, flat, limit))
        return [_holding.decode(body) for (body,) in rows]

    async def balances(self, account: AccountId, after_unit: str, limit: int) -> list[Balance]:
        """The money accounts of the next currencies."""
        rows = await self._rows(schema.BALANCES_OF, (account, after_unit, limit))
        return [Balance(name, unit, Decimal(amount)) for name, unit, amount in rows]

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


def _state(connection: apsw.Connection) -> LedgerState:
    epoch, seq, digest, read_at, entries, entries_hash = connection.execute(schema.STATE).get
    return LedgerState(
        Place(epoch, seq, digest),
        None if read_at is None else datetime.fromisoformat(read_at),
        LedgerHead(entries, entries_hash),
    )


def _post(connection: apsw.Connection, after: Place, events: Sequence[BusEvent]) -> Posted:
    with _classified_errors(), connection:
        state = _state(connection)
        if state.place != after:
            raise HistoryMismatch(
                f"the books are at event {state.place.seq}, not at {after.seq}: another writer posted"
            )
        books = _booked(connection, state.head, events)
        _write(connection, books)
        last = events[-1]
        place = last.place
        connection.execute(
            schema.MOVE,
            (place.epoch, place.seq, place.hash, stamp(last.event.at), books.head.number, books.head.hash),
        )
    return Posted(
        state=LedgerState(place, last.event.at, books.head),
        entries=len(books.entries),
        repeats=books.repeats,
        notes=sum(len(line.entry.notes) for line in books.entries),
    )


def _booked(connection: apsw.Connection, head: LedgerHead, events: Sequence[BusEvent]) -> Books:
    """The books of this page, with the rows that it touches, after its events."""
    facts = bookable(events)
    if not facts:
        return Books(head)
    rows = connection.execute(schema.FIND_ORDERS, (_json(sorted(order_ids(facts))),))
    books = Books(head, [_order.decode(body) for (body,) in rows])
    wanted = touched(facts, books.orders)
    if wanted.entry_ids:
        ids = _json(sorted(wanted.entry_ids))
        books.booked = {entry_id for (entry_id,) in connection.execute(schema.FIND_ENTRIES, (ids,))}
        for (body,) in connection.execute(schema.FIND_POSITIONS, (_json(sorted(wanted.holdings)),)):
            holding = _holding.decode(body)
            books.holdings[holding.account_id, holding.symbol, holding.currency] = holding
        for account, name, unit, amount in connection.execute(schema.FIND_BALANCES, (_json(sorted(wanted.balances)),)):
            books.balances[account, name, unit] = Decimal(amount)
    for fact in facts:
        books.take(fact)
    return books


def _write(connection: apsw.Connection, books: Books) -> None:
    if books.entries:
        entries = [
            (
                line.entry.number,
                line.entry.entry_id,
                line.entry.type,
                line.entry.account_id,
                line.entry.order_id,
                stamp(line.entry.at),
                line.text,
                line.hash,
            )
            for line in books.entries
        ]
        connection.execute(schema.ADD_ENTRIES, (_json(entries),))
        legs = [
            (line.entry.number, number, line.entry.account_id, leg.account, leg.unit, leg.amount)
            for line in books.entries
            for number, leg in enumerate(line.entry.legs, 1)
        ]
        connection.execute(schema.ADD_LEGS, (_json(legs),))
    if books.changed_orders:
        orders = [(key, _json(books.orders[key])) for key in sorted(books.changed_orders)]
        connection.execute(schema.SET_ORDERS, (_json(orders),))
    if books.changed_holdings:
        holdings = [(*key, _json(books.holdings[key])) for key in sorted(books.changed_holdings)]
        connection.execute(schema.SET_POSITIONS, (_json(holdings),))
    if books.changed_balances:
        balances = [(*key, books.balances[key]) for key in sorted(books.changed_balances)]
        connection.execute(schema.SET_BALANCES, (_json(balances),))


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
        # The time never decreases with the number: one search of the index, not a filter over all entries.
        conditions.append("number >= (SELECT number FROM entries WHERE at >= ? ORDER BY at, number LIMIT 1)")
        values.append(stamp(wanted.since))
    order = "DESC" if wanted.newest else "ASC"
    # An order has few entries, a type or an account may have millions.
    index = "order" if wanted.order_id is not None else "account" if wanted.type is None else "type"
    sql = (
        f"SELECT number, text, hash FROM entries INDEXED BY entries_of_{index} "
        f"WHERE {' AND '.join(conditions)} ORDER BY number {order} LIMIT ?"
    )
    return sql, [*values, min(wanted.limit, ENTRIES_MAX)]


@contextmanager
def _classified_errors() -> Iterator[None]:
    """Raise LedgerUnavailable where nothing was written and a repeat may help, LedgerBroken otherwise."""
    try:
        yield
    except (apsw.FullError, apsw.BusyError, apsw.LockedError) as error:
        raise LedgerUnavailable(f"the books cannot be written, nothing was: {error}") from error
    except apsw.Error as error:
        raise LedgerBroken(f"the books cannot be written: {error}") from error


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
