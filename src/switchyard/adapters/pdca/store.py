"""The PDCA store: its three ports on one engine."""

from pathlib import Path

from switchyard.adapters.pdca.postgres_engine import PostgresEngine
from switchyard.adapters.pdca.queue import SqlQueue
from switchyard.adapters.pdca.requests import SqlRequests
from switchyard.adapters.pdca.session import Engine, TracedEngine
from switchyard.adapters.pdca.sqlite_engine import SqliteEngine
from switchyard.adapters.pdca.strategies import SqlStrategies
from switchyard.ports.tracing import Tracer


class SqlPdcaStore(SqlStrategies, SqlRequests, SqlQueue):
    """ports.strategies.PdcaStore."""

    def __init__(self, engine: Engine) -> None:
        SqlStrategies.__init__(self, engine)
        SqlRequests.__init__(self, engine)
        SqlQueue.__init__(self, engine)

    @classmethod
    async def on_file(cls, path: Path, tracer: Tracer | None = None) -> "SqlPdcaStore":
        """The store in a SQLite file, which is created if it is missing."""
        return cls(_traced(await SqliteEngine.open(path), tracer, "sqlite"))

    @classmethod
    async def on_postgres(cls, url: str, tracer: Tracer | None = None) -> "SqlPdcaStore":
        """The store in a PostgreSQL database that has its schema."""
        return cls(_traced(await PostgresEngine.open(url), tracer, "postgresql"))

    async def close(self) -> None:
        """Finish the transactions in progress and disconnect."""
        await self._engine.close()


def _traced(engine: Engine, tracer: Tracer | None, system: str) -> Engine:
    return engine if tracer is None else TracedEngine(engine, tracer, system)
