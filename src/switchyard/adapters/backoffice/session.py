"""What the books need of an engine: transactions, rows, and the parts of statements in which the engines differ."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from switchyard.ports.books import ResultGroup, ResultsBy

Row = Sequence[Any]
T = TypeVar("T")


class Session(Protocol):
    """A transaction that writes. A statement has the parameters `$1`, `$2`, …."""

    async def rows(self, sql: str, *values: Any) -> Sequence[Row]:
        """Run a statement and return its rows."""
        ...

    def each(self, sql: str, *values: Any) -> AsyncIterator[Row]:
        """Run a query whose result may be long."""
        ...

    async def write(self, sql: str, rows: Sequence[Row]) -> None:
        """Run a statement with `Dialect.given` for all these rows, if there are any."""
        ...


class Dialect(NamedTuple):
    """What the statements of an engine do not share."""

    any_of: str
    """The condition that a column is in a list, which is the parameter `{}`."""
    each: str
    """The elements `value` of a JSON array, which is the parameter `{}`."""
    given: Callable[[int], str]
    """The rows of an INSERT with this number of columns."""
    hint: str
    """A hint to use the index `{}`, for an engine that has no statistics to plan by."""
    json: str
    """The column `{}` as JSON."""
    sum: str
    """The sum of two amounts."""
    lock: str
    """The end of a query whose rows stay as they are until the transaction ends."""
    new_accounts: str | None
    """Adds the accounts `$1` that are missing, with the hash `$2`, so that they can be locked; None without locks."""
    now: str | None
    """A query of the time of the database, if it has a clock of its own."""
    time: Callable[[datetime], Any]
    day: Callable[[date], Any]
    carried: str
    bodies: str
    """The aggregate of the column `body` as a JSON array."""
    amounts: str
    """The aggregate of account, unit and amount as a JSON array."""
    closing_balances: str
    closing_positions: str


class Engine(Protocol):
    """One ledger: a file or a schema."""

    dialect: Dialect

    async def write(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Run in a transaction that is durable at its end; raises LedgerUnavailable and LedgerBroken."""
        ...

    async def write_of_people(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """The same for what cannot be booked again from the journal; raises OutcomeUnknown if it may be booked."""
        ...

    async def read(self, decode: Callable[[Any], T], sql: str, *values: Any) -> list[T]:
        """Decode each row of a bounded query, once the synchronous standby has them; raises LedgerUnavailable."""
        ...

    async def read_unconfirmed(self, decode: Callable[[Any], T], sql: str, *values: Any) -> list[T]:
        """The same without the standby, for what is derived from the journal alone and moves no money."""
        ...

    async def results(self, by: ResultsBy, limit: int, *values: Any) -> list[ResultGroup]:
        """Sum the results of account `$1` from day `$2` to `$3` by name and currency, after `$4` and `$5`."""
        ...

    async def close(self) -> None:
        """Finish what is in progress and disconnect."""
        ...
