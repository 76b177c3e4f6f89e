"""Connections to PostgreSQL: their settings, one that is kept open, and notifications of commits."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import asyncpg
import structlog

from switchyard.domain.errors import CannotStart
from switchyard.domain.values import canonical

Connection: TypeAlias = asyncpg.Connection
Record: TypeAlias = asyncpg.Record

# Long enough for a server under load, short enough that the caller is still waiting when a dead server is reported.
CONNECT_SECONDS_MAX = 5.0
# A cancel takes another connection, which is made in milliseconds unless the network or the server is gone.
DISCONNECT_SECONDS_MAX = 1.0
# A read returns at most a page: one that takes longer waits for an answer that the network dropped.
READ_SECONDS_MAX = 30.0
# For the standby to have a commit of a person or a program, as long as for one of orders. With the check of what was
# read (`reader.CONFIRM_SECONDS_MAX`) an answer takes 20 s at most.
COMMIT_SECONDS_MAX = 10.0

SERVER_SETTINGS = {
    "application_name": "switchyard",
    "timezone": "UTC",
    # `append_group` must see what was committed while it waited for its lock.
    "default_transaction_isolation": "read committed",
    # A 2xx response promises a flushed WAL, whatever the server's default is.
    "synchronous_commit": "on",
    # `PostgresJournal` needs the warning about a commit that did not wait for its standby.
    "client_min_messages": "warning",
    # Every statement is a short index scan, planned once. A plan made while the tables are empty must not be a
    # sequential scan, since it is used after they have grown.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}

# The session ended or was interrupted: the outcome of its command is unknown.
CONNECTION_LOST = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
# The same, or the server rejected the command.
DATABASE_ERRORS = (*CONNECTION_LOST, asyncpg.PostgresError)


# The next host of the URL may answer: this one is silent, closes the connection, or is not what the URL asks for.
_NEXT_HOST = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TargetServerAttributeNotMatched,
)


async def connect(url: str) -> Connection:
    """A connection outside the pool, for work that must not wait for it or needs session state."""
    return await connect_to_any(url, server_settings=SERVER_SETTINGS)


async def connect_to_any(url: str, **options: Any) -> Connection:
    """Connect to the first host of the URL that answers as the URL asks for.

    asyncpg would spend the whole time on a host that is silent: here each has an equal share of what is left.
    """
    clock = asyncio.get_running_loop()
    deadline = clock.time() + CONNECT_SECONDS_MAX
    urls = _url_of_each_host(url)
    for left in range(len(urls), 0, -1):
        try:
            return await asyncpg.connect(urls[-left], timeout=(deadline - clock.time()) / left, **options)
        except _NEXT_HOST:
            if left == 1:
                raise
    raise AssertionError("the last host returns or raises")


def _url_of_each_host(url: str) -> list[str]:
    place = urlsplit(url).netloc
    user, at, hosts = place.partition("@") if "@" in place else ("", "", place)
    return [url.replace(place, user + at + host, 1) for host in hosts.split(",")]


async def disconnect(connection: Connection) -> None:
    """Cancel the command in progress, if there is one, and end the session; aborts the connection if that takes long.

    The server does not notice that a client is gone while its commit waits for the standby: such sessions would add up.
    """
    with suppress(*DATABASE_ERRORS):
        await connection.close(timeout=DISCONNECT_SECONDS_MAX)


@asynccontextmanager
async def single_connection(url: str) -> AsyncIterator[Connection]:
    """A connection for a start or a command; a failure raises CannotStart with the cause."""
    try:
        connection = await connect(url)
    except ValueError as error:
        # asyncpg quotes the part of the URL that it rejects, which may be a part of the password.
        raise CannotStart(
            "SWITCHYARD_DATABASE_URL is not a PostgreSQL URL (postgresql://user@host:port/database?option=value): "
            "check the port and the options"
        ) from error
    except DATABASE_ERRORS as error:
        raise CannotStart(f"the database in SWITCHYARD_DATABASE_URL cannot be reached: {_text(error)}") from error
    try:
        yield connection
    except DATABASE_ERRORS as error:
        raise CannotStart(f"the database failed: {_text(error)}") from error
    finally:
        await connection.close(timeout=CONNECT_SECONDS_MAX)


def _text(error: BaseException) -> str:
    return str(error) or repr(error)


class TransactionSession:
    """Runs statements in a transaction in progress."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def rows(self, sql: str, *values: Any) -> Sequence[Record]:
        """Run a statement and return its rows."""
        records: Sequence[Record] = await self._connection.fetch(sql, *values)
        return records

    def each(self, sql: str, *values: Any) -> AsyncIterator[Record]:
        """Run a query through a cursor."""
        records: AsyncIterator[Record] = aiter(self._connection.cursor(sql, *values))
        return records

    async def write(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement for each row."""
        await self._connection.executemany(sql, rows)


async def decode_canonically(connection: Connection) -> None:
    """Decode amounts in canonical form: PostgreSQL keeps trailing zeros."""
    await connection.set_type_codec(
        "numeric", schema="pg_catalog", encoder=str, decoder=lambda text: canonical(Decimal(text)), format="text"
    )


log = structlog.get_logger()

# A network may drop a connection without a FIN or RST: a query this often costs little and detects it within seconds.
PING_SECONDS = 5.0
# Short enough to reconnect soon after a restart of the server, long enough not to load it during an outage.
RETRY_SECONDS = 0.5


class PersistentConnection:
    """Connects, runs `prepare` on the session, watches the connection, and starts over when it is lost."""

    def __init__(self, url: str, purpose: str, prepare: Callable[[Connection], Awaitable[None]]) -> None:
        self._url = url
        self._purpose = purpose
        self._prepare = prepare
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and prepare; raises when the first connection fails. A later loss is repaired in the background."""
        await self._connect()
        self.start()

    def start(self) -> None:
        """Keep the connection open from now on; does not wait for the first connection."""
        self._task = asyncio.create_task(self._keep(), name=self._purpose)

    async def close(self) -> None:
        """End the session."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            with contextlib.suppress(*DATABASE_ERRORS):
                await self._connection.close(timeout=CONNECT_SECONDS_MAX)

    async def _keep(self) -> None:
        while True:
            while self._connection is None:
                try:
                    await self._connect()
                except DATABASE_ERRORS:
                    await asyncio.sleep(RETRY_SECONDS)
            try:
                await self._watch(self._connection)
            except DATABASE_ERRORS as error:
                log.error("database_connection_lost", purpose=self._purpose, error=repr(error))
                self._connection.terminate()
                self._connection = None

    async def _connect(self) -> None:
        connection = await connect(self._url)
        try:
            await self._prepare(connection)
        except BaseException:
            connection.terminate()
            raise
        self._connection = connection

    async def _watch(self, connection: Connection) -> None:
        """Never returns; raises when the connection is lost."""
        ended = asyncio.Event()
        connection.add_termination_listener(lambda _: ended.set())
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PING_SECONDS):
                    await ended.wait()
            await connection.execute("SELECT 1", timeout=CONNECT_SECONDS_MAX)


CHANNEL = "switchyard"  # as in `append_group`


class CommitNotifications:
    """Calls back once for a burst of notifications, whatever their number."""

    def __init__(self, url: str, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._is_scheduled = False
        self._connection = PersistentConnection(url, "commit notifications", self._subscribe)

    def start(self) -> None:
        """Listen from now on, and reconnect when the server restarts."""
        self._connection.start()

    async def close(self) -> None:
        """Stop listening."""
        await self._connection.close()

    async def _subscribe(self, connection: Connection) -> None:
        await connection.add_listener(CHANNEL, self._on_notification)
        # Commits from before the subscription sent no notification here.
        self._on_notification()

    def _on_notification(self, *_: object) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._call_back)

    def _call_back(self) -> None:
        self._is_scheduled = False
        self._callback()
