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
from msgspec.structs import replace

from switchyard.adapters.backoffice import schema
from switchyard.adapters.files.lock import lock_beside
from switchyard.adapters.sqlite.connections import Connections
from switchyard.domain.bus import BusEvent, SourcePosition
from switchyard.domain.chain import stamp
from switchyard.domain.errors import AlreadyRunning, CannotStart, SchemaMismatch
from switchyard.domain.ids import AccountId
from switchyard.domain.ledger.accounts import BookedAccount, HaltedAccount
from switchyard.domain.ledger.bookable import ReadEvent, read_events
from switchyard.domain.ledger.books import Books, account_ids, order_ids, touched
from switchyard.domain.ledger.entries import LedgerHead
from switchyard.domain.ledger.holdings import Holding
from switchyard.domain.ledger.orders import BookedOrder
from switchyard.ports.ledger import (
    ENTRIES_MAX,
    Balance,
    Claim,
    EntryFilter,
    EntryKey,
    LedgerBroken,
    LedgerUnavailable,
    OwnershipLost,
    Posted,
    SourceState,
    StoredEntry,
)

T = TypeVar("T")

_order = msgspec.json.Decoder(BookedOrder)
_position: msgspec.json.Decoder[SourcePosition] = msgspec.json.Decoder(SourcePosition)
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

    async def claim(self, source: str, start: SourcePosition) -> Claim:
        """Raise the source's generation and return how far it was read."""
        return await self._connections.write(lambda connection: _claim(connection, source, start))

    async def post(self, claim: Claim, events: Sequence[BusEvent], position: SourcePosition) -> Posted:
        """Book the events and move the position, in one transaction; durable on return."""
        return await self._connections.write(lambda connection: _post(connection, claim, events, position))

    async def sources(self) -> list[SourceState]:
        """Every source that was ever claimed."""
        rows = await self._rows(schema.SOURCES, ())
        return [
            SourceState(source, _position.decode(position), generation, _time(read_at))
            for source, position, generation, read_at in rows
        ]

    async def reset(self, source: str, start: SourcePosition) -> None:
        """Have the source read again from `start`."""

        def work(connection: apsw.Connection) -> None:
            with _classified_errors(), connection:
                connection.execute(schema.RESET, (source, _json(start)))

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

    async def strategy_entries(self, strategy: str, after: EntryKey | None, limit: int) -> list[StoredEntry]:
        """Entries of a strategy by time, account and number."""
        key = ("", "", 0) if after is None else (stamp(after.at), after.account_id, after.number)
        rows = await self._rows(schema.ENTRIES_OF_STRATEGY, (strategy, *key, min(limit, ENTRIES_MAX)))
        return [StoredEntry(*row) for row in rows]

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


def _claim(connection: apsw.Connection, source: str, start: SourcePosition) -> Claim:
    with _classified_errors(), connection:
        connection.execute(schema.CLAIM, (source, _json(start)))
        position, generation = connection.execute(schema.SOURCE, (source,)).get
    return Claim(source, generation, _position.decode(position))


def _post(connection: apsw.Connection, claim: Claim, events: Sequence[BusEvent], position: SourcePosition) -> Posted:
    with _classified_errors(), connection:
        _check_owned(claim, connection.execute(schema.SOURCE, (claim.source,)).get)
        books = _booked(connection, read_events(events))
        _write(connection, books)
        read_at = events[-1].event.at if events else None
        connection.execute(schema.MOVE, (_json(position), None if read_at is None else stamp(read_at), claim.source))
    return Posted(
        claim=replace(claim, position=position),
        read_at=read_at,
        entries=len(books.entries),
        skipped=books.skipped,
        repeats=books.repeats,
        notes=sum(len(line.entry.notes) for line in books.entries),
        halted=books.halted,
    )


def _check_owned(claim: Claim, row: tuple[str, int] | None) -> None:
    """The fence: raise OwnershipLost unless the source is as the claim has it."""
    if row is None:
        raise OwnershipLost(claim.source, "it was never claimed")
    position, generation = row
    if generation != claim.generation:
        raise OwnershipLost(claim.source, f"it was claimed {generation} times, this claim is number {claim.generation}")
    if (found := _position.decode(position)) != claim.position:
        raise OwnershipLost(claim.source, f"it was read to {found}, not to {claim.position}")


def _booked(connection: apsw.Connection, events: Sequence[ReadEvent]) -> Books:
    """The books of this page, with the rows that it touches, after its events."""
    accounts = connection.execute(schema.FIND_ACCOUNTS, (_json(sorted(account_ids(events))),))
    found = [account_of(row) for row in accounts]
    orders = connection.execute(schema.FIND_ORDERS, (_json(sorted(order_ids(events))),))
    books = Books(found, [_order.decode(body) for (body,) in orders])
    wanted = touched(events, books.orders)
    if wanted.entry_ids:
        ids = _json(sorted(wanted.entry_ids))
        books.booked = {entry_id for (entry_id,) in connection.execute(schema.FIND_ENTRIES, (ids,))}
        for (body,) in connection.execute(schema.FIND_POSITIONS, (_json(sorted(wanted.holdings)),)):
            holding = _holding.decode(body)
            books.holdings[holding.account_id, holding.symbol, holding.currency] = holding
        for account, name, unit, amount in connection.execute(schema.FIND_BALANCES, (_json(sorted(wanted.balances)),)):
            books.balances[account, name, unit] = Decimal(amount)
    for event in events:
        books.read(event)
    return books


def _write(connection: apsw.Connection, books: Books) -> None:
    if books.entries:
        entries = [
            (
                new.entry.account_id,
                new.entry.number,
                new.entry.entry_id,
                new.entry.type,
                new.entry.order_id,
                new.entry.strategy,
                stamp(new.entry.at),
                stamp(new.reached_at),
                new.line.text,
                new.line.hash,
            )
            for new in books.entries
        ]
        connection.execute(schema.ADD_ENTRIES, (_json(entries),))
        legs = [
            (new.entry.account_id, new.entry.number, number, leg.account, leg.unit, leg.amount)
            for new in books.entries
            for number, leg in enumerate(new.entry.legs, 1)
        ]
        connection.execute(schema.ADD_LEGS, (_json(legs),))
    if books.changed_accounts:
        accounts = [_account_row(books.accounts[key]) for key in sorted(books.changed_accounts)]
        connection.execute(schema.SET_ACCOUNTS, (_json(accounts),))
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
        # `reached_at` never decreases with the number: one search of the index, not a filter over all entries.
        conditions.append(
            "at >= ? AND number >= (SELECT number FROM entries INDEXED BY entries_by_time "
            "WHERE account_id = ? AND reached_at >= ? ORDER BY reached_at, number LIMIT 1)"
        )
        values += [stamp(wanted.since), wanted.account_id, stamp(wanted.since)]
    order = "DESC" if wanted.newest else "ASC"
    # An order has few entries, a type or an account may have millions.
    index = "INDEXED BY entries_of_order " if wanted.order_id is not None else ""
    if not index and wanted.type is not None:
        index = "INDEXED BY entries_of_type "
    sql = (
        f"SELECT number, text, hash FROM entries {index}"
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


def account_of(row: Sequence[Any]) -> BookedAccount:
    """The account of a row of the table."""
    account_id, entries, digest, reached_at, epoch, seq, halted_seq, halted = row
    return BookedAccount(
        account_id=account_id,
        head=LedgerHead(entries, digest),
        reached_at=_time(reached_at),
        epoch=epoch,
        seq=seq,
        halted_seq=halted_seq,
        halted=halted,
    )


def _account_row(account: BookedAccount) -> tuple[Any, ...]:
    reached_at = None if account.reached_at is None else stamp(account.reached_at)
    head = account.head
    return (
        account.account_id,
        head.number,
        head.hash,
        reached_at,
        account.epoch,
        account.seq,
        account.halted_seq,
        account.halted,
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
