"""Connections to PostgreSQL: session settings, and the errors that leave an outcome unknown."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from typing import TypeAlias

import asyncpg

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


async def connect(url: str) -> Connection:
    """A connection outside the pool, for work that must not wait for it or needs session state."""
    return await asyncpg.connect(url, timeout=CONNECT_SECONDS_MAX, server_settings=SERVER_SETTINGS)


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


async def decode_canonically(connection: Connection) -> None:
    """Decode amounts in canonical form: PostgreSQL keeps trailing zeros."""
    await connection.set_type_codec(
        "numeric", schema="pg_catalog", encoder=str, decoder=lambda text: canonical(Decimal(text)), format="text"
    )
