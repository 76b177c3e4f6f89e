"""The books in a SQLite file: how it is opened and locked, and its transactions."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from itertools import groupby, islice
from pathlib import Path
from typing import Any, TypeVar

import apsw

from switchyard.adapters.backoffice.ledger import SqlLedger
from switchyard.adapters.backoffice.rows import add_amounts, result_of
from switchyard.adapters.backoffice.session import Dialect, Row, Session
from switchyard.adapters.backoffice.sqlite import schema
from switchyard.adapters.backoffice.sqlite.files import kept_elsewhere, opened
from switchyard.adapters.files.durable import lock_beside
from switchyard.adapters.sqlite.connections import Connections
from switchyard.adapters.sqlite.rows import parameters
from switchyard.domain.books.holdings import Result
from switchyard.domain.journal.lines import stamp
from switchyard.ports.books import LedgerBroken, LedgerUnavailable, ResultGroup, ResultsBy

T = TypeVar("T")

_RESULTS = """
SELECT {name}, currency, realised, strategy_realised, fees, fills FROM results
WHERE account_id = $1 AND day >= $2 AND day <= $3 AND ({name}, currency) > ($4, $5) ORDER BY {name}, currency
"""


def _given(columns: int) -> str:
    # Bound values, a statement for each row: nothing else in the books' process competes for the interpreter lock.
    return f"VALUES ({', '.join('?' * columns)})"


DIALECT = Dialect(
    any_of="IN (SELECT value FROM jsonb_each({}))",
    each="jsonb_each({})",
    given=_given,
    hint="INDEXED BY {}",
    json="{}",
    sum="add_amounts({}, {})",  # a function of the connection: the file's amounts are texts
    lock="",
    new_accounts=None,
    now=None,
    time=stamp,
    day=date.isoformat,
    carried="""
    SELECT number, text, hash FROM entries WHERE account_id = $1 AND number > $2 AND entered_by IS NOT NULL
    UNION
    SELECT number, text, hash FROM orphans JOIN entries USING (account_id, number) WHERE account_id = $1 AND number > $2
    ORDER BY number LIMIT $3
    """,
    bodies="json_group_array(body)",
    amounts="json_group_array(json_array(account, unit, amount))",
    closing_balances="""
    SELECT account, unit, amount, max(day) FROM day_balances
    WHERE account_id = $1 AND account NOT IN ('position', 'position_clearing') AND day <= $2 AND unit IN (
        SELECT DISTINCT unit FROM day_balances
        WHERE account_id = $1 AND unit > $3 AND day <= $2 AND account NOT IN ('position', 'position_clearing')
        ORDER BY unit LIMIT $4
    )
    GROUP BY unit, account ORDER BY unit, account
    """,
    closing_positions="""
    SELECT body, max(day) FROM day_positions
    WHERE account_id = $1 AND (symbol, currency) > ($2, $3) AND day <= $4
    GROUP BY symbol, currency HAVING body ->> 'qty' <> '0' ORDER BY symbol, currency LIMIT $5
    """,
)


class SqliteLedger(SqlLedger):
    """The ledger of one file."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(SqliteEngine(connections))

    @classmethod
    async def open(cls, path: Path) -> "SqliteLedger":
        """Open the file, or create it, and lock it for this process."""
        return await asyncio.to_thread(cls._open, path)

    @classmethod
    def _open(cls, path: Path) -> "SqliteLedger":
        connections = opened(
            path,
            "books",
            schema.SCHEMA,
            schema.SCHEMA_VERSION,
            other_version=": move it away, and the books are built again from the journal",
            unreadable="Put a copy of it back, or run `switchyard backoffice rebuild`, which builds the books again "
            "from the journal",
        )
        connections.writer.create_scalar_function("add_amounts", _add_amounts, 2, deterministic=True)
        return cls(connections)


class SqliteEngine:
    """adapters.backoffice.session.Engine on one file."""

    dialect = DIALECT

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def write(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Run all of the work in the writer thread."""

        def run(connection: apsw.Connection) -> T:
            with classified_errors(), connection:
                result: T = _driven(work(_SqliteSession(connection)))
            return result

        return await self._connections.write(run)

    write_of_people = write

    async def read(self, decode: Callable[[Any], T], sql: str, *values: Any) -> list[T]:
        """Decode each row in a reader thread."""
        given = parameters(values)
        return await self._connections.read(lambda connection: list(map(decode, connection.execute(sql, given))))

    read_unconfirmed = read

    async def results(self, by: ResultsBy, limit: int, *values: Any) -> list[ResultGroup]:
        """Sum the results row by row: the file's amounts are texts, and a long range needs no memory."""
        given = parameters(values)

        def work(connection: apsw.Connection) -> list[ResultGroup]:
            rows = connection.execute(_RESULTS.format(name=by), given)
            groups = groupby(rows, key=lambda row: (str(row[0]), str(row[1])))
            return [
                ResultGroup(name, currency, sum((result_of(row[2:]) for row in group), Result()))
                for (name, currency), group in islice(groups, limit)
            ]

        return await self._connections.read(work)

    async def close(self) -> None:
        """Finish the write in progress and release the file."""
        await asyncio.to_thread(self._connections.close)


class _SqliteSession:
    """A transaction of the writer thread: its methods never wait, so that `_driven` can run what awaits them."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    async def rows(self, sql: str, *values: Any) -> Sequence[Row]:
        """Run a statement."""
        return self._connection.execute(sql, parameters(values)).fetchall()

    async def each(self, sql: str, *values: Any) -> AsyncIterator[Row]:
        """Run a query and return its rows one by one."""
        for row in self._connection.execute(sql, parameters(values)):
            yield row

    async def write(self, sql: str, rows: Sequence[Row]) -> None:
        """Run a statement for each of the rows, with their amounts as texts."""
        self._connection.executemany(sql, map(_texts, rows))


def _texts(row: Row) -> Row:
    return [str(value) if type(value) is Decimal else value for value in row]


def _driven(work: Awaitable[T]) -> T:
    """Run to the end what awaits nothing but a `_SqliteSession`."""
    try:
        next(work.__await__())
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a transaction of the books may await its statements alone")


@contextmanager
def classified_errors() -> Iterator[None]:
    """Raise LedgerUnavailable where nothing was written and a repeat may help, LedgerBroken otherwise."""
    try:
        yield
    except (apsw.FullError, apsw.BusyError, apsw.LockedError) as error:
        raise LedgerUnavailable(f"the books cannot be written, nothing was: {error}") from error
    except apsw.Error as error:
        raise LedgerBroken(f"the books cannot be written: {error}") from error


def _add_amounts(*amounts: Any) -> str:
    first, second = amounts
    return add_amounts(first, second)


@contextmanager
def locked_books(path: Path) -> Iterator[None]:
    """Keep every other process from the file, without opening it."""
    lock = lock_beside(path)
    if lock is None:
        raise kept_elsewhere(path, "books")
    try:
        yield
    finally:
        os.close(lock)
