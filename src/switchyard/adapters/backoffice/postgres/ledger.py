"""The ledger in PostgreSQL, in a schema of its own; several processes may use it, each source has one owner."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from switchyard.adapters.backoffice.postgres import posting, schema
from switchyard.adapters.backoffice.postgres.posting import classified_errors
from switchyard.adapters.backoffice.rows import adoption_of, holding_decoder, json_text, position_decoder
from switchyard.adapters.postgres.connection import Connection, Record, single_connection
from switchyard.adapters.postgres.reader import ReadBarrier, open_pool
from switchyard.domain.books.entries import Adoption, HaltedAccount, LedgerEntry
from switchyard.domain.books.holdings import Holding
from switchyard.domain.books.manual import ManualEntry
from switchyard.domain.errors import CannotStart, SchemaMismatch
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.lines import BusEvent, SourcePosition
from switchyard.ports.books import (
    ENTRIES_MAX,
    Balance,
    Claim,
    Entered,
    EntryFilter,
    EntryKey,
    LedgerUnavailable,
    Posted,
    SourceState,
    StoredEntry,
)

BOOKS = "backoffice"
"""The schema of the books in use."""
# Of two processes that start at once, the second waits and finds the schema.
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('switchyard backoffice'), 1)"
_BEGINNING = datetime(1, 1, 1, tzinfo=UTC)


class PostgresLedger:
    """ports.ledger.Ledger and ports.manual_ledger.ManualLedger on one schema of a database."""

    def __init__(self, pool: asyncpg.Pool, barrier: ReadBarrier) -> None:
        self._pool = pool
        self._barrier = barrier

    @classmethod
    async def open(cls, url: str, name: str = BOOKS) -> "PostgresLedger":
        """Open the books, or create them; raises SchemaMismatch for those of another version."""
        async with single_connection(url) as connection, connection.transaction():
            await connection.execute(_LOCK)
            await _prepare(connection, name)
        return cls(*await open_pool(url, search_path=name))

    async def close(self) -> None:
        """Finish what is in progress and disconnect."""
        await self._pool.close()
        await self._barrier.close()

    async def claim(self, source: str, start: SourcePosition) -> Claim:
        """Raise the source's generation and return how far it was read."""
        async with self._connection() as connection:
            position, generation = await connection.fetchrow(schema.CLAIM, source, json_text(start))
        return Claim(source, generation, position_decoder.decode(position))

    async def post(self, claim: Claim, events: Sequence[BusEvent], position: SourcePosition) -> Posted:
        """Book the events and move the position, in one transaction; durable on return."""
        async with self._connection() as connection:
            return await posting.post(connection, claim, events, position)

    async def sources(self) -> list[SourceState]:
        """Every source that was ever claimed."""
        return [
            SourceState(source, position_decoder.decode(position), generation, read_at)
            for source, position, generation, read_at in await self.rows(schema.SOURCES)
        ]

    async def reset(self, source: str, start: SourcePosition) -> None:
        """Have the source read again from `start`."""
        async with self._connection() as connection:
            await connection.execute(schema.RESET, source, json_text(start))

    async def count(self) -> int:
        """The number of entries of all accounts."""
        [(count,)] = await self.rows(schema.COUNT)
        return int(count)

    async def halted(self, limit: int) -> list[HaltedAccount]:
        """The accounts that have halted."""
        return [HaltedAccount(*row) for row in await self.rows(schema.HALTED, limit)]

    async def entries(self, wanted: EntryFilter) -> list[StoredEntry]:
        """Entries in order of their numbers."""
        sql, values = _entries_query(wanted)
        found = [StoredEntry(*row) for row in await self.rows(sql, *values)]
        return found[::-1] if wanted.newest else found

    async def strategy_entries(
        self, account: AccountId, strategy: str, after: EntryKey | None, limit: int
    ) -> list[StoredEntry]:
        """Entries of an account's strategy by time and number."""
        key = (_BEGINNING, 0) if after is None else (after.at, after.number)
        rows = await self.rows(schema.ENTRIES_OF_STRATEGY, account, strategy, *key, min(limit, ENTRIES_MAX))
        return [StoredEntry(*row) for row in rows]

    async def holdings(
        self, account: AccountId, after_symbol: str, after_currency: str, limit: int, *, flat: bool = True
    ) -> list[Holding]:
        """Positions by symbol and currency."""
        rows = await self.rows(schema.POSITIONS_OF, account, after_symbol, after_currency, flat, limit)
        return [holding_decoder.decode(row[0]) for row in rows]

    async def balances(self, account: AccountId, after_unit: str, limit: int) -> list[Balance]:
        """The money accounts of the next currencies."""
        return [Balance(*row) for row in await self.rows(schema.BALANCES_OF, account, after_unit, limit)]

    async def enter(self, wanted: ManualEntry, at: datetime) -> Entered:
        """Book an entry by a person."""
        # Unlike the entries of events, it cannot be booked again from the journal.
        async with self._barrier.confirmed(LedgerUnavailable), self._connection() as connection:
            return await posting.enter(connection, wanted, at)

    async def carry(self, entry: LedgerEntry) -> None:
        """Book an entry of other books."""
        async with self._connection() as connection:
            await posting.carry(connection, entry)

    async def adopt(self, adoption: Adoption, source: str, position: SourcePosition) -> int:
        """Follow the journal of a new epoch."""
        async with self._barrier.confirmed(LedgerUnavailable), self._connection() as connection:
            return await posting.adopt(connection, adoption, source, position)

    async def adoptions(self) -> list[Adoption]:
        """The adoptions by epoch."""
        return [adoption_of(row, posting.same) for row in await self.rows(schema.ADOPTIONS)]

    async def orphans(self, after: tuple[AccountId, int], limit: int) -> list[StoredEntry]:
        """Entries that the adopted journal does not have."""
        return [StoredEntry(*row) for row in await self.rows(schema.ORPHANS, *after, min(limit, ENTRIES_MAX))]

    async def carried(self, account: AccountId, after: int, limit: int) -> list[StoredEntry]:
        """Entries of an account that a rebuild carries over."""
        rows = await self.rows(schema.CARRIED, account, after, min(limit, ENTRIES_MAX))
        return [StoredEntry(*row) for row in rows]

    async def rows(self, sql: str, *values: Any) -> list[Record]:
        """All rows of a bounded query; none for a value that no row can have, such as a NUL character."""
        async with self._connection() as connection:
            try:
                found: list[Record] = await connection.fetch(sql, *values)
            except asyncpg.DataError:  # here, because `_connection` makes another error of it
                return []
        return found

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        async with classified_errors(), self._pool.acquire() as connection:
            yield connection


async def drop_books(connection: Connection, name: str) -> None:
    """Remove a schema of books that is not in use."""
    await connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


async def has_books(connection: Connection, name: str = BOOKS) -> bool:
    """Whether the schema exists."""
    return bool(await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", f'"{name}"'))


async def replace_books(connection: Connection, new: str, *, discard: bool = False) -> str | None:
    """Put rebuilt books in the place of those in use, in one step; returns the name under which those are kept.

    Raises CannotStart where a person has booked an entry since the rebuild began, unless they are discarded.
    """
    old = None
    async with connection.transaction():
        await connection.execute(_LOCK)
        if await has_books(connection):
            if not discard:
                # Other processes serve the API meanwhile. Every entry locks its account first.
                await connection.execute(f'LOCK TABLE "{BOOKS}".accounts IN EXCLUSIVE MODE')
                missing = await connection.fetchval(schema.NOT_CARRIED.format(old=BOOKS, new=new))
                if missing:
                    raise CannotStart(
                        f"{missing} entries of people were booked during the rebuild; the books in use are unchanged: "
                        "run it again"
                    )
            number = 1
            while await has_books(connection, old := f"{BOOKS}_replaced_{number}"):
                number += 1
            await connection.execute(f'ALTER SCHEMA "{BOOKS}" RENAME TO "{old}"')
        await connection.execute(f'ALTER SCHEMA "{new}" RENAME TO "{BOOKS}"')
    return old


async def _prepare(connection: Connection, name: str) -> None:
    """Create the schema where it is missing; another version is rejected."""
    if not await has_books(connection, name):
        await connection.execute(f'CREATE SCHEMA "{name}"')
        await connection.execute(f'SET LOCAL search_path TO "{name}"')
        await connection.execute(schema.SCHEMA)
        return
    found = None
    if await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", f'"{name}".version'):
        found = await connection.fetchval(f'SELECT number FROM "{name}".version')
    if found != schema.SCHEMA_VERSION:
        raise SchemaMismatch(
            f"the schema {name} of the database has no books of this version (found {found}, needed "
            f"{schema.SCHEMA_VERSION}): rename it, and the books are built again from the journal"
        )


def _entries_query(wanted: EntryFilter) -> tuple[str, list[Any]]:
    values: list[Any] = []

    def value(each: Any) -> str:
        values.append(each)
        return f"${len(values)}"

    account = value(wanted.account_id)
    conditions = [f"account_id = {account}", f"number > {value(wanted.after)}"]
    if wanted.before is not None:
        conditions.append(f"number < {value(wanted.before)}")
    if wanted.order_id is not None:
        conditions.append(f"order_id = {value(wanted.order_id)}")
    if wanted.type is not None:
        conditions.append(f"type = {value(wanted.type)}")
    if wanted.since is not None:
        since = value(wanted.since)
        # `reached_at` never decreases with the number: one search of the index, not a filter over all entries.
        conditions.append(
            f"at >= {since} AND number >= (SELECT number FROM entries WHERE account_id = {account} "
            f"AND reached_at >= {since} ORDER BY reached_at, number LIMIT 1)"
        )
    if wanted.day is not None:
        begin = datetime(wanted.day.year, wanted.day.month, wanted.day.day, tzinfo=UTC)
        conditions.append(f"reached_at >= {value(begin)} AND reached_at < {value(begin + timedelta(days=1))}")
    order = "DESC" if wanted.newest else "ASC"
    limit = value(min(wanted.limit, ENTRIES_MAX))
    where = " AND ".join(conditions)
    sql = f"SELECT number, text, hash FROM entries WHERE {where} ORDER BY number {order} LIMIT {limit}"
    return sql, values
