"""The servers that are compared, and how each is started."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.checkouts import ROOT, Checkout
from bench.processes import Server, free_port, running, serving
from bench.stores import PostgresStore, SqliteStore, Store

NULL_VENUE = "null:"
# In the process of the API, or in one of its own.
PeerWorker = Literal["inside", "beside"]


@dataclass(frozen=True)
class Contender:
    """How to run one server, and the database of its orders (None for `hello`)."""

    folder: Path
    port: int
    command: list[str]
    environment: Mapping[str, str]
    store: Store | None
    worker: list[str] | None = None
    """A second process that the server needs, with the same environment."""

    @contextmanager
    def serving(self) -> Iterator[Server]:
        """Run the server until the block ends; yields it once it is healthy."""
        with ExitStack() as stack:
            server = stack.enter_context(serving(self.command, self.environment, self.folder, self.port))
            if self.worker is not None:
                stack.enter_context(running(self.worker, self.environment, self.folder, "worker.log"))
            yield server


def hello(folder: Path) -> Contender:
    """The HTTP stack without any work."""
    port = free_port()
    return Contender(folder, port, _uvicorn("bench.hello.app:app", port), {}, None)


def peer(folder: Path, secret: str, database_url: str, worker: PeerWorker | None) -> Contender:
    """FastAPI and asyncpg, with one transaction per request; a PgQueuer worker sends the orders."""
    port = free_port()
    environment = {"JWT_HS256_SECRET": secret, "PEER_DATABASE_URL": database_url, "PYTHONPATH": str(ROOT)}
    if worker is not None:
        environment["PEER_WORKER"] = worker
    command = _uvicorn("bench.peer.app:app", port)
    beside = [sys.executable, "-m", "bench.peer.worker"] if worker == "beside" else None
    return Contender(folder, port, command, environment, PostgresStore(database_url), beside)


# Each kind of rule and limit once, far above what the benchmark sends.
EVERY_RULE: Mapping[str, str] = {
    "RISK_MAX_QTY": "1e9",
    "RISK_MAX_QTY_BY_ACCOUNT_SYMBOL": "bench-00|USDJPY:1e9",
    "RISK_MAX_NOTIONAL": "9e14",
    "RISK_MIN_PRICE": "0.001",
    "RISK_MAX_PRICE": "1e9",
    "RISK_MAX_PRICE_BY_SYMBOL": "USDJPY:1e9",
    "RISK_ALLOWED_SYMBOLS_BY_ACCOUNT": "bench-00:USDJPY",
    "RISK_ALLOWED_SIDES": "BUY|SELL",
    "RISK_ALLOWED_TYPES": "LIMIT|MARKET",
    "RISK_RESTRICTED_SYMBOLS": "XRP",
    "RISK_RATE_PER_SEC": "100000",
    "RISK_RATE_BURST": "1000000",
    "RISK_MAX_OPEN_ORDERS": "1000000",
    "RISK_MAX_OPEN_NOTIONAL": "9e14",
    "RISK_MAX_POSITION": "9e14",
    "RISK_MAX_GROSS_EXPOSURE": "9e14",
    "RISK_MAX_DAILY_LOSS": "9e14",
    "RISK_MAX_ORDERS_PER_WINDOW": "10000",
}


def switchyard(
    checkout: Checkout,
    folder: Path,
    secret: str,
    database_url: str | None,
    redis_url: str | None = None,
    *,
    worker: bool,
    venue: str | None = NULL_VENUE,
    rules: bool = False,
) -> Contender:
    """Switchyard, on SQLite in the folder or on PostgreSQL.

    Without `worker` it only accepts orders. Without `venue` it uses its default, the paper exchange. With `rules` every
    pre-trade rule and limit is on; none of them rejects the orders of the benchmark.
    """
    port = free_port()
    data = folder / "data"
    environment = {
        "SWITCHYARD_DATA_DIR": str(data),
        "SWITCHYARD_STATE_DIR": str(folder / "state"),
        "SWITCHYARD_PORT": str(port),
        # The base has no books, and they read the journal beside the orders: their cost is measured on its own.
        "SWITCHYARD_BACKOFFICE": "false",
        "SWITCHYARD_WORKER": str(worker).lower(),
        "SWITCHYARD_LOG_LEVEL": "warning",
        "JWT_HS256_SECRET": secret,
        **(EVERY_RULE if rules else {}),
    }
    if venue is not None:
        environment["VENUE_URL_SIM"] = venue
    store: Store = SqliteStore(data)
    if database_url is not None:
        environment["SWITCHYARD_DATABASE_URL"] = database_url
        store = PostgresStore(database_url)
    if redis_url is not None:
        environment["SWITCHYARD_REDIS_URL"] = redis_url
    return Contender(folder, port, [str(checkout.program), "up"], checkout.known(environment), store)


def _uvicorn(app: str, port: int) -> list[str]:
    options = ["--app-dir", str(ROOT), "--host", "127.0.0.1", "--port", str(port)]
    options += ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
    return [sys.executable, "-m", "uvicorn", app, *options]
