"""What the store needs of an engine: transactions, and the few places where the two engines' SQL differs."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

Row = Sequence[Any]


class Session(Protocol):
    """A transaction in progress."""

    async def rows(self, sql: str, *values: Any) -> Sequence[Row]:
        """Run a statement with the parameters `$1`, `$2`, … and return its rows."""
        ...


class Dialect(NamedTuple):
    """Parts of statements."""

    each: str
    """A query of the texts in a JSON array, which is the parameter `{}`."""
    skip_locked: str
    """The end of a query whose rows another transaction may be claiming."""
    lock: str
    """The end of a query whose rows stay as they are until the transaction ends."""
    lock_caller: str | None
    """A statement that waits for other transactions that add items of the caller `$1` to the queue; None if a
    transaction that writes is always alone."""


class Engine(Protocol):
    """One database."""

    dialect: Dialect

    def reading(self) -> AbstractAsyncContextManager[Session]:
        """Return a transaction in which all reads see the same moment; raises PdcaUnavailable."""
        ...

    def writing(self) -> AbstractAsyncContextManager[Session]:
        """Return a transaction that is durable at its end, or undone by an error.

        Raises PdcaUnavailable where nothing was written, OutcomeUnknown where that is not known.
        """
        ...

    async def close(self) -> None:
        """Finish the transactions in progress and disconnect."""
        ...


def moment(value: datetime | str | None) -> datetime | None:
    """A time as an engine returns it, in UTC."""
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return None if value is None else value.astimezone(UTC)
