"""The books in a schema of a PostgreSQL database: how it is opened, replaced and held, and its transactions."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import structlog

from switchyard.adapters.backoffice.ledger import SqlLedger
from switchyard.adapters.backoffice.postgres import schema
from switchyard.adapters.backoffice.rows import result_of
from switchyard.adapters.backoffice.session import Dialect, Row, Session
from switchyard.adapters.backoffice.statements import ACCOUNT_COLUMNS
from switchyard.adapters.postgres.connection import (
    COMMIT_SECONDS_MAX,
    CONNECT_SECONDS_MAX,
    CONNECTION_LOST,
    DATABASE_ERRORS,
    Connection,
    TransactionSession,
    connect,
    single_connection,
)
from switchyard.adapters.postgres.reader import ReadBarrier, open_pool
from switchyard.domain.errors import CannotStart, OutcomeUnknown, SchemaMismatch
from switchyard.ports.books import LedgerBroken, LedgerUnavailable, ResultGroup, ResultsBy

T = TypeVar("T")

_NAMES: dict[ResultsBy, str] = {"day": "to_char(day, 'YYYY-MM-DD')", "symbol": "symbol", "strategy": "strategy"}
_RESULTS = """
SELECT {name} COLLATE "C" AS name, currency, sum(realised), sum(strategy_realised), sum(fees), sum(fills)::bigint
FROM results WHERE account_id = $1 AND day BETWEEN $2 AND $3 AND ({name} COLLATE "C", currency) > ($4, $5)
GROUP BY 1, 2 ORDER BY 1, 2 LIMIT $6
"""
_NOT_CARRIED = """
SELECT count(*) FROM "{old}".entries WHERE entered_by IS NOT NULL
AND NOT EXISTS (SELECT 1 FROM "{new}".entries AS carried WHERE carried.entry_id = entries.entry_id)
"""


def _given(columns: int) -> str:
    return f"VALUES ({', '.join(f'${number}' for number in range(1, columns + 1))})"


def _same(value: Any) -> Any:
    """PostgreSQL has times and days of its own."""
    return value


DIALECT = Dialect(
    any_of="= ANY ({})",
    each="json_array_elements(CAST({} AS json))",
    given=_given,
    hint="",
    json="CAST({} AS jsonb)",
    sum="{} + {}",
    lock="FOR UPDATE",
    new_accounts=f"""
    INSERT INTO accounts ({ACCOUNT_COLUMNS}) SELECT id, 0, $2, NULL, 0, 0, NULL, NULL FROM unnest($1::text[]) AS id
    ORDER BY id ON CONFLICT DO NOTHING
    """,
    now="SELECT clock_timestamp()",
    time=_same,
    day=_same,
    carried="""
    SELECT number, text, hash FROM entries WHERE account_id = $1 AND number > $2 AND (
        entered_by IS NOT NULL
        OR EXISTS (SELECT 1 FROM orphans WHERE orphans.account_id = $1 AND orphans.number = entries.number)
    ) ORDER BY number LIMIT $3
    """,
    bodies="CAST(json_agg(body) AS text)",
    amounts="CAST(json_agg(json_build_array(account, unit, CAST(amount AS text))) AS text)",
    closing_balances="""
    SELECT DISTINCT ON (unit, account) account, unit, amount FROM day_balances
    WHERE account_id = $1 AND account NOT IN ('position', 'position_clearing') AND day <= $2 AND unit IN (
        SELECT DISTINCT unit FROM day_balances
        WHERE account_id = $1 AND unit > $3 AND day <= $2 AND account NOT IN ('position', 'position_clearing')
        ORDER BY unit LIMIT $4
    )
    ORDER BY unit, account, day DESC
    """,
    closing_positions="""
    SELECT body FROM (
        SELECT DISTINCT ON (symbol, currency) symbol, currency, body FROM day_positions
        WHERE account_id = $1 AND (symbol, currency) > ($2, $3) AND day <= $4 ORDER BY symbol, currency, day DESC
    ) AS closing WHERE body::jsonb ->> 'qty' <> '0' ORDER BY symbol, currency LIMIT $5
    """,
)

BOOKS = "backoffice"
"""The schema of the books in use."""
# Of two processes that start at once, the second waits and finds the schema.
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('switchyard backoffice'), 1)"


class PostgresLedger(SqlLedger):
    """The ledger of one schema of a database."""

    def __init__(self, pool: asyncpg.Pool, barrier: ReadBarrier) -> None:
        super().__init__(PostgresEngine(pool, barrier))

    @classmethod
    async def open(cls, url: str, name: str = BOOKS) -> "PostgresLedger":
        """Open the books, or create them; raises SchemaMismatch for those of another version."""
        async with single_connection(url) as connection, connection.transaction():
            await connection.execute(_LOCK)
            await _prepare(connection, name)
        return cls(*await open_pool(url, search_path=name))


class PostgresEngine:
    """adapters.backoffice.session.Engine on one schema."""

    dialect = DIALECT

    def __init__(self, pool: asyncpg.Pool, barrier: ReadBarrier) -> None:
        self._pool = pool
        self._barrier = barrier

    async def write(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Run in one transaction."""
        async with self._connection() as connection:
            return await in_transaction(connection, work)

    async def write_of_people(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """The same; the synchronous standby has it at the end, which a transaction that only read waits for too."""
        async with self._barrier.confirmed(OutcomeUnknown), self._connection() as connection:
            try:
                async with asyncio.timeout(COMMIT_SECONDS_MAX):
                    return await in_transaction(connection, work)
            except CONNECTION_LOST as error:
                raise OutcomeUnknown(f"the answer of the books' database was lost: {error!r}") from error

    async def read(self, decode: Callable[[Any], T], sql: str, *values: Any) -> list[T]:
        """Decode each row, once the synchronous standby has them.

        None for a value that no row can have, such as a NUL character.
        """
        async with self._barrier.confirmed(LedgerUnavailable):
            return await self.read_unconfirmed(decode, sql, *values)

    async def read_unconfirmed(self, decode: Callable[[Any], T], sql: str, *values: Any) -> list[T]:
        """The same without the barrier."""
        async with self._connection() as connection:
            try:
                return [decode(record) for record in await connection.fetch(sql, *values)]
            except asyncpg.DataError:  # here, because `_connection` makes another error of it
                return []

    async def results(self, by: ResultsBy, limit: int, *values: Any) -> list[ResultGroup]:
        """Sum the results in the database."""
        return await self.read(_group, _RESULTS.format(name=_NAMES[by]), *values, limit)

    async def close(self) -> None:
        """Finish what is in progress and disconnect."""
        await self._pool.close()
        await self._barrier.close()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        async with classified_errors(), self._pool.acquire() as connection:
            yield connection


def _group(row: Row) -> ResultGroup:
    name, currency, *amounts = row
    return ResultGroup(name, currency, result_of(amounts))


async def in_transaction(connection: Connection, work: Callable[[Session], Awaitable[T]]) -> T:
    """Run in a transaction of this connection."""
    async with connection.transaction():
        return await work(TransactionSession(connection))


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
                missing = await connection.fetchval(_NOT_CARRIED.format(old=BOOKS, new=new))
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


log = structlog.get_logger()

# In the namespace of the books' schema lock.
_TAKE = "SELECT pg_try_advisory_lock(hashtext('switchyard backoffice'), 2)"


_TAKE_REBUILT = "SELECT pg_try_advisory_lock(hashtext('switchyard backoffice'), 3)"


async def take_rebuilt(connection: Connection) -> bool:
    """Take the schema in which books are built again, until the session ends; false where another session has it."""
    return bool(await connection.fetchval(_TAKE_REBUILT, timeout=CONNECT_SECONDS_MAX))


class PostgresReaderLock:
    """ports.journal.ReaderLock of the books of one database."""

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
