"""The servers that are compared, each started as one process by one command."""

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bench.processes import free_port, serving
from bench.stores import PostgresStore, SqliteStore, Store

ROOT = Path(__file__).resolve().parent.parent
SWITCHYARD = Path(sys.executable).parent / "switchyard"


@dataclass(frozen=True)
class Contender:
    """How to run one server, and the database of its orders (None for `hello`)."""

    folder: Path
    port: int
    command: list[str]
    environment: Mapping[str, str]
    store: Store | None

    def serving(self) -> AbstractContextManager[str]:
        """Run the server until the block ends; yields its URL once it is healthy."""
        return serving(self.command, self.environment, self.folder, self.port)


def hello(folder: Path) -> Contender:
    """The HTTP stack without any work."""
    port = free_port()
    return Contender(folder, port, _uvicorn("bench.hello.app:app", port), {}, None)


def peer(folder: Path, secret: str, database_url: str) -> Contender:
    """FastAPI and asyncpg, with one transaction per request."""
    port = free_port()
    environment = {"JWT_HS256_SECRET": secret, "PEER_DATABASE_URL": database_url}
    return Contender(folder, port, _uvicorn("bench.peer.app:app", port), environment, PostgresStore(database_url))


def switchyard(
    folder: Path, secret: str, database_url: str | None, redis_url: str | None = None, *, worker: bool
) -> Contender:
    """Switchyard, on SQLite in the folder or on PostgreSQL; without `worker` it only accepts orders."""
    port = free_port()
    data = folder / "data"
    environment = {
        "SWITCHYARD_DATA_DIR": str(data),
        "SWITCHYARD_STATE_DIR": str(folder / "state"),
        "SWITCHYARD_PORT": str(port),
        "SWITCHYARD_WORKER": str(worker).lower(),
        "SWITCHYARD_LOG_LEVEL": "warning",
        "JWT_HS256_SECRET": secret,
        "VENUE_URL_SIM": "null:",
    }
    store: Store = SqliteStore(data)
    if database_url is not None:
        environment["SWITCHYARD_DATABASE_URL"] = database_url
        store = PostgresStore(database_url)
    if redis_url is not None:
        environment["SWITCHYARD_REDIS_URL"] = redis_url
    return Contender(folder, port, [str(SWITCHYARD), "up"], environment, store)


def _uvicorn(app: str, port: int) -> list[str]:
    options = ["--app-dir", str(ROOT), "--host", "127.0.0.1", "--port", str(port)]
    options += ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
    return [sys.executable, "-m", "uvicorn", app, *options]
