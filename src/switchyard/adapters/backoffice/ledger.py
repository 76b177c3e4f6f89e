"""The ledger in a SQLite file of its own, for one process; written in one thread, read in others."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import apsw

from switchyard.adapters.backoffice import posting, schema
from switchyard.adapters.backoffice.rows import add_amounts, holding_decoder, json_text, position_decoder
from switchyard.adapters.files.lock import lock_beside
from switchyard.adapters.sqlite.connections import Connections
from switchyard.domain.books.entries import Adoption, HaltedAccount, LedgerEntry
from switchyard.domain.books.holdings import Holding
from switchyard.domain.books.manual import ManualEntry
from switchyard.domain.errors import AlreadyRunning, CannotStart, SchemaMismatch
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.lines import BusEvent, SourcePosition, stamp
from switchyard.ports.books import (
    ENTRIES_MAX,
    Balance,
    Claim,
    Entered,
    EntryFilter,
    EntryKey,
    Posted,
    SourceState,
    StoredEntry,
)

T = TypeVar("T")


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
        return await self._connections.write(lambda connection: posting.claim_source(connection, source, start))

    async def post(self, claim: Claim, events: Sequence[BusEvent], position: SourcePosition) -> Posted:
        """Book the events and move the position, in one transaction; durable on return."""
        return await self._connections.write(lambda connection: posting.post(connection, claim, events, position))

    async def sources(self) -> list[SourceState]:
        """Every source that was ever claimed."""
        rows = await self._rows(schema.SOURCES, ())
        return [
            SourceState(source, position_decoder.decode(position), generation, posting.time_of(read_at))
            for source, position, generation, read_at in rows
        ]

    async def reset(self, source: str, start: SourcePosition) -> None:
        """Have the source read again from `start`."""

        def work(connection: apsw.Connection) -> None:
            with posting.classified_errors(), connection:
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
        return await self._connections.write(lambda connection: posting.enter(connection, wanted, at))

    async def carry(self, entry: LedgerEntry) -> None:
        """Book an entry of other books."""
        await self._connections.write(lambda connection: posting.carry(connection, entry))

    async def adopt(self, adoption: Adoption, source: str, position: SourcePosition) -> int:
        """Follow the journal of a new epoch."""
        return await self._connections.write(lambda connection: posting.adopt(connection, adoption, source, position))

    async def adoptions(self) -> list[Adoption]:
        """The adoptions by epoch."""
        return await self.read(posting.list_adoptions)

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
