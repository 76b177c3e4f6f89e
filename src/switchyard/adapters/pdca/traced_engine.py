"""An engine whose transactions are spans of the trace that they belong to. Used only where traces are on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from switchyard.adapters.pdca.session import Engine, Session
from switchyard.ports.tracing import Tracer
from switchyard.telemetry.traces import child_span


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
