"""The books on PostgreSQL: posts pages of entries in one commit each, and reads them."""

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import structlog
from msgspec.structs import replace

from switchyard.adapters.backoffice.postgres import schema
from switchyard.adapters.backoffice.rows import (
    Tally,
    Written,
    account_of,
    adoption_of,
    check_owned,
    entered_before,
    holding_decoder,
    json_text,
    order_decoder,
    position_decoder,
)
from switchyard.adapters.postgres.connection import (
    CONNECT_SECONDS_MAX,
    CONNECTION_LOST,
    DATABASE_ERRORS,
    Connection,
    Record,
    connect,
    single_connection,
)
from switchyard.adapters.postgres.reader import ReadBarrier, open_pool
from switchyard.domain.books.books import Books
from switchyard.domain.books.entries import Adoption, BookedAccount, HaltedAccount, LedgerEntry, parse_entry
from switchyard.domain.books.fold import Refold
from switchyard.domain.books.holdings import Holding, Target, key_of, waits_for
from switchyard.domain.books.manual import AHEAD_MAX, ManualEntry, check_manual, entry_id_of_manual, manual_entry
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
from switchyard.domain.errors import CannotStart, OutcomeUnknown, SchemaMismatch
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.lines import GENESIS, BusEvent, SourcePosition
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


def same(value: Any) -> Any:
    """PostgreSQL has times and days of its own."""
    return value


async def post(connection: Connection, claim: Claim, events: Sequence[BusEvent], position: SourcePosition) -> Posted:
    """Book a page."""
    tally = Tally()
    async with connection.transaction():
        check_owned(claim, await connection.fetchrow(schema.SOURCE, claim.source))
        adoptions = [adoption_of(row, same) for row in await connection.fetch(schema.ADOPTIONS)]
        read = read_events(events)
        accounts = {account.account_id: account for account in await _accounts(connection, account_ids(read))}
        for part in parts_of(read, await _waited_for(connection, executions(read))):
            books = await _booked(connection, part.events, accounts.values(), adoptions)
            await _write(connection, books)
            accounts |= books.accounts
            tally.add(books)
            if part.settles:
                await _settle(connection, books, accounts, tally)
        read_at = events[-1].event.at if events else None
        await connection.execute(schema.MOVE, claim.source, json_text(position), read_at)
    return tally.posted(replace(claim, position=position), read_at)


async def enter(connection: Connection, wanted: ManualEntry, at: datetime) -> Entered:
    """Book an entry by a person."""
    check_manual(wanted)
    ahead = at - await connection.fetchval("SELECT clock_timestamp()")
    if ahead > AHEAD_MAX:
        # It would belong to a day to come, and with it every later entry of the account.
        raise LedgerUnavailable(
            f"nothing was booked: the clock of this machine is {ahead.total_seconds():.0f} s ahead of the database's"
        )
    async with connection.transaction():
        # The account's lock comes first: of two requests with one key, the second finds the entry of the first.
        books = Books(await _accounts(connection, {wanted.account_id}))
        of_key = await connection.fetchrow(schema.STORED_OF_KEY, wanted.account_id, wanted.key)
        of_id = await connection.fetchrow(schema.STORED_OF, entry_id_of_manual(wanted))
        if (before := entered_before(wanted, of_key, of_id)) is not None:
            return before
        target = None if wanted.reverses is None else await _target(connection, wanted.reverses)
        if wanted.type != "Reversal":
            await _load(connection, books, touched_by(manual_entry(wanted, seq=0, at=at)))
        elif target is not None and target.entry is not None:
            await _load(connection, books, touched_by(target.entry))
            await _load_order(connection, books, target.entry.order_id)
        new = books.enter(wanted, at, target)
        await _write(connection, books)
    return Entered(StoredEntry(new.entry.number, new.line.text, new.line.hash), False)


async def carry(connection: Connection, entry: LedgerEntry) -> None:
    """Book an entry of other books."""
    async with connection.transaction():
        books = Books(await _accounts(connection, {entry.account_id}))
        await _load_order(connection, books, entry.order_id)
        target = None if entry.reverses is None else await _target(connection, entry.reverses)
        await _load(connection, books, touched_by(entry))
        books.carry(entry, target)
        await _write(connection, books)
        if entry.by is None:  # an orphan of the other books is one of these
            number = books.entries[-1].entry.number
            await connection.execute(schema.ADD_ORPHAN, entry.account_id, number, entry.entry_id)


async def adopt(connection: Connection, adoption: Adoption, source: str, position: SourcePosition) -> int:
    """Follow the journal of a new epoch."""
    async with connection.transaction():
        row = adoption.epoch, adoption.after_seq, adoption.first_seq, adoption.by, adoption.reason, adoption.at
        await connection.execute(schema.ADD_ADOPTION, *row)
        orphans: int = await connection.fetchval(schema.ADD_ORPHANS, adoption.after_seq, adoption.first_seq)
        await connection.execute(schema.RESET, source, json_text(position))
    return orphans


@asynccontextmanager
async def classified_errors() -> AsyncIterator[None]:
    """Raise LedgerUnavailable where a repeat may help, LedgerBroken otherwise.

    After a lost connection the outcome is unknown; the source's position, or the person's key, tells.
    """
    try:
        yield
    except (*CONNECTION_LOST, asyncpg.InsufficientResourcesError, asyncpg.DeadlockDetectedError) as error:
        raise LedgerUnavailable(f"the books' database does not answer: {error!r}") from error
    except asyncpg.PostgresError as error:
        raise LedgerBroken(f"the books cannot be written: {error!r}") from error


async def _accounts(connection: Connection, wanted: set[AccountId]) -> list[BookedAccount]:
    """The accounts, locked to the end of the transaction; new ones where they do not exist."""
    await connection.execute(schema.NEW_ACCOUNTS, sorted(wanted), GENESIS)
    rows = await connection.fetch(schema.FIND_ACCOUNTS, sorted(wanted))
    return [account_of(row, same) for row in rows]


async def _booked(
    connection: Connection,
    events: Sequence[ReadEvent],
    accounts: Iterable[BookedAccount],
    adoptions: Sequence[Adoption],
) -> Books:
    """The books of this part of a page, with the rows that it touches, after its events."""
    orders = await connection.fetch(schema.FIND_ORDERS, sorted(order_ids(events)))
    books = Books(accounts, [order_decoder.decode(row[0]) for row in orders], adoptions)
    await _load(connection, books, touched(events, books.orders))
    for event in events:
        target = None
        revised = revised_entry_id(event, books.orders)
        if revised is not None:
            target = await _target(connection, revised)
            if target.entry is not None:
                await _load(connection, books, touched_by(target.entry))
        books.read(event, target)
    return books


async def _waited_for(connection: Connection, reported: Executions) -> Executions:
    """Those of the executions that a memo of a revision waits for."""
    if not reported:
        return reported
    return frozenset(map(tuple, await connection.fetch(schema.FIND_WAITED_FOR, *_columns(reported))))


async def _settle(connection: Connection, books: Books, accounts: dict[AccountId, BookedAccount], tally: Tally) -> None:
    """Carry out the revisions that waited for the new fills, and those that waited for the fills that these book."""
    fills = deque(books.fills)
    while fills:
        fill = fills.popleft()
        rows = await connection.fetch(schema.WAITING, fill.account_id, fill.exec_id)
        for memo in [parse_entry(row[0]) for row in rows]:
            if not waits_for(memo, fill):
                continue
            target, late = await _target(connection, fill.entry_id), Books([accounts[fill.account_id]])
            await _load_order(connection, late, fill.order_id)
            if target.entry is not None:
                await _load(connection, late, touched_by_late(target.entry, memo))
            late.settle(memo, fill, target)
            await _write(connection, late)
            accounts |= late.accounts
            tally.add(late)
            fills.extend(late.fills)


async def _load(connection: Connection, books: Books, wanted: Touched) -> None:
    """Read the rows that the next entries touch."""
    if wanted.entry_ids:
        rows = await connection.fetch(schema.FIND_ENTRIES, sorted(wanted.entry_ids))
        books.booked |= {row[0] for row in rows}
    if wanted.holdings:
        for row in await connection.fetch(schema.FIND_POSITIONS, *_columns(wanted.holdings)):
            holding = holding_decoder.decode(row[0])
            books.holdings[key_of(holding)] = holding
    if wanted.balances:
        for account, name, unit, amount in await connection.fetch(schema.FIND_BALANCES, *_columns(wanted.balances)):
            books.balances[account, name, unit] = amount


async def _load_order(connection: Connection, books: Books, order_id: OrderId) -> None:
    for row in await connection.fetch(schema.FIND_ORDERS, [order_id]):
        books.orders[order_id] = order_decoder.decode(row[0])


def _columns(keys: frozenset[Any]) -> list[list[str]]:
    return [list(column) for column in zip(*sorted(keys), strict=True)]


async def _target(connection: Connection, entry_id: str) -> Target:
    """The entry that a reversal takes back: the newest of an execution that was corrected before."""
    while (row := await connection.fetchrow(schema.REVERSAL_OF, entry_id)) is not None:
        if row[0] is None:
            break
        entry_id = row[0]
    found = await connection.fetchrow(schema.STORED_OF, entry_id)
    if found is None:
        return Target()
    entry = parse_entry(found["text"])
    if row is not None:
        return Target(entry, True)
    refold = Refold(entry)
    if refold.is_needed:
        async for other in connection.cursor(schema.UNREVERSED, entry.account_id, entry.symbol):
            refold.add(parse_entry(other[0]))
    return refold.target()


async def _write(connection: Connection, books: Books) -> None:
    written = Written(books, same, same)
    for sql, rows in (
        (schema.ADD_ENTRIES, written.entries),
        (schema.ADD_LEGS, written.legs),
        (schema.SET_ACCOUNTS, written.accounts),
        (schema.SET_ORDERS, written.orders),
        (schema.SET_POSITIONS, written.positions),
        (schema.SET_BALANCES, written.balances),
        (schema.SET_DAY_POSITIONS, written.day_positions),
        (schema.SET_DAY_BALANCES, written.day_balances),
        (schema.ADD_RESULTS, written.results),
        (schema.ADD_REVERSALS, written.reversals),
    ):
        if rows:
            await connection.executemany(sql, rows)
    if written.confirmed:
        await connection.execute(schema.CONFIRM, written.confirmed)


BOOKS = "backoffice"
"""The schema of the books in use."""
# Of two processes that start at once, the second waits and finds the schema.
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('switchyard backoffice'), 1)"
_BEGINNING = datetime(1, 1, 1, tzinfo=UTC)


class PostgresLedger:
    """ports.books.Ledger and ports.books.ManualLedger on one schema of a database."""

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
            return await post(connection, claim, events, position)

    async def sources(self) -> list[SourceState]:
        """Every source that was ever claimed."""
        return [
            SourceState(source, position_decoder.decode(position), generation, read_at)
            for source, position, generation, read_at in await self._unconfirmed_rows(schema.SOURCES)
        ]

    async def reset(self, source: str, start: SourcePosition) -> None:
        """Have the source read again from `start`."""
        async with self._connection() as connection:
            await connection.execute(schema.RESET, source, json_text(start))

    async def count(self) -> int:
        """The number of entries of all accounts."""
        [(count,)] = await self._unconfirmed_rows(schema.COUNT)
        return int(count)

    async def halted(self, limit: int) -> list[HaltedAccount]:
        """The accounts that have halted."""
        return [HaltedAccount(*row) for row in await self._unconfirmed_rows(schema.HALTED, limit)]

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
        async with self._writing_of_people() as connection:
            return await enter(connection, wanted, at)

    async def carry(self, entry: LedgerEntry) -> None:
        """Book an entry of other books."""
        async with self._connection() as connection:
            await carry(connection, entry)

    async def adopt(self, adoption: Adoption, source: str, position: SourcePosition) -> int:
        """Follow the journal of a new epoch."""
        async with self._writing_of_people() as connection:
            return await adopt(connection, adoption, source, position)

    async def adoptions(self) -> list[Adoption]:
        """The adoptions by epoch."""
        return [adoption_of(row, same) for row in await self.rows(schema.ADOPTIONS)]

    async def orphans(self, after: tuple[AccountId, int], limit: int) -> list[StoredEntry]:
        """Entries that the adopted journal does not have."""
        return [StoredEntry(*row) for row in await self.rows(schema.ORPHANS, *after, min(limit, ENTRIES_MAX))]

    async def carried(self, account: AccountId, after: int, limit: int) -> list[StoredEntry]:
        """Entries of an account that a rebuild carries over."""
        rows = await self.rows(schema.CARRIED, account, after, min(limit, ENTRIES_MAX))
        return [StoredEntry(*row) for row in rows]

    async def rows(self, sql: str, *values: Any) -> list[Record]:
        """All rows of a bounded query, once the synchronous standby has them; raises LedgerUnavailable.

        None for a value that no row can have, such as a NUL character.
        """
        async with self._barrier.confirmed(LedgerUnavailable):
            return await self._unconfirmed_rows(sql, *values)

    async def _unconfirmed_rows(self, sql: str, *values: Any) -> list[Record]:
        """The same without the barrier, for what is derived from the journal alone and moves no money."""
        async with self._connection() as connection:
            try:
                found: list[Record] = await connection.fetch(sql, *values)
            except asyncpg.DataError:  # here, because `_connection` makes another error of it
                return []
        return found

    @asynccontextmanager
    async def _writing_of_people(self) -> AsyncIterator[Connection]:
        """A connection for what cannot be booked again from the journal; the synchronous standby has it at the end.

        Raises OutcomeUnknown if it may be booked: a repeat with the same key tells.
        """
        async with self._barrier.confirmed(OutcomeUnknown), self._connection() as connection:
            try:
                yield connection
            except CONNECTION_LOST as error:
                raise OutcomeUnknown(f"the answer of the books' database was lost: {error!r}") from error

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


log = structlog.get_logger()

# In the namespace of the books' schema lock.
_TAKE = "SELECT pg_try_advisory_lock(hashtext('switchyard backoffice'), 2)"


_TAKE_REBUILT = "SELECT pg_try_advisory_lock(hashtext('switchyard backoffice'), 3)"


async def take_rebuilt(connection: Connection) -> bool:
    """Take the schema in which books are built again, until the session ends; false where another session has it."""
    return bool(await connection.fetchval(_TAKE_REBUILT, timeout=CONNECT_SECONDS_MAX))


class PostgresTurn:
    """ports.journal.Turn of the books of one database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None
        self._has = False

    async def is_ours(self) -> bool:
        """Whether this process has the lock; asks the server each time, so that a lost session is noticed."""
        try:
            if self._connection is None:
                self._connection = await connect(self._url)
            if self._has:
                await self._connection.execute("SELECT 1", timeout=CONNECT_SECONDS_MAX)
            else:
                self._has = bool(await self._connection.fetchval(_TAKE, timeout=CONNECT_SECONDS_MAX))
                if self._has:
                    log.info("backoffice_turn_taken")
        except DATABASE_ERRORS as error:
            log.warning("backoffice_turn_unknown", error=repr(error))
            await self.give_up()
        return self._has

    async def give_up(self) -> None:
        """End the session, which releases the lock."""
        connection, self._connection, self._has = self._connection, None, False
        if connection is not None:
            with contextlib.suppress(*DATABASE_ERRORS):
                await connection.close(timeout=CONNECT_SECONDS_MAX)
