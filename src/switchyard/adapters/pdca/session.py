"""A session of the PDCA store on either engine: dialect, rows, and spans."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, Protocol

from switchyard.ports.tracing import Tracer
from switchyard.telemetry.traces import child_span

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


class TracedEngine:
    """adapters.pdca.session.Engine over another one."""

    def __init__(self, engine: Engine, tracer: Tracer, system: str) -> None:
        """`system`: the database's name in OpenTelemetry's conventions."""
        self.dialect = engine.dialect
        self._engine = engine
        self._tracer = tracer
        self._system = system

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Session]:
        """A transaction that reads."""
        with child_span(self._tracer, "pdca.store.read", "client") as span:
            if span is not None:
                span.set("db.system.name", self._system)
            async with self._engine.reading() as session:
                yield session

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Session]:
        """A transaction that writes."""
        with child_span(self._tracer, "pdca.store.write", "client") as span:
            if span is not None:
                span.set("db.system.name", self._system)
            async with self._engine.writing() as session:
                yield session

    async def close(self) -> None:
        """Close the engine."""
        await self._engine.close()
