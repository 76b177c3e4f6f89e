"""How PostgreSQL is connected to, and which errors leave a command's fate open."""

from decimal import Decimal
from typing import Any, TypeAlias

import asyncpg

from switchyard.domain.errors import JournalUnavailable
from switchyard.domain.money import canonical

Connection: TypeAlias = asyncpg.Connection
Record: TypeAlias = asyncpg.Record

# Long enough for a server under load, short enough that a caller learns of a dead one while it still waits.
CONNECT_SECONDS_MAX = 5.0
# No read walks more than a page: one that takes longer hangs on a network that swallowed the answer.
READ_SECONDS_MAX = 30.0
# Reads are short; more connections would only queue on the server's processors instead of here.
READERS_MAX = 8

SERVER_SETTINGS = {
    "application_name": "switchyard",
    "timezone": "UTC",
    # `append_group` relies on seeing what was committed while it waited for its lock.
    "default_transaction_isolation": "read committed",
    # A 2xx answer promises a flushed log; a laxer default of the server's must not weaken that.
    "synchronous_commit": "on",
    # Every statement is a short walk along an index, planned once. A plan that was made while the tables were
    # still empty must not read them from end to end when they have grown.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}

# The session is gone or was interrupted: what became of the command is not known from here.
LOST = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
# The same, or the server said no.
FAILED = (*LOST, asyncpg.PostgresError)


async def connect(url: str) -> Connection:
    """A connection outside the pool, for what must not wait or lives in a session."""
    return await asyncpg.connect(url, timeout=CONNECT_SECONDS_MAX, server_settings=SERVER_SETTINGS)


class Reader:
    """A small pool for reads, so that they never wait for a commit."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    @classmethod
    async def open(cls, url: str) -> "Reader":
        """A pool that connects with the first read."""
        pool = await asyncpg.create_pool(
            url,
            # Made on demand and then kept: the pool's own upkeep would fill the log while the server is away.
            min_size=0,
            max_size=READERS_MAX,
            max_inactive_connection_lifetime=0,
            init=_decode_canonically,
            reset=_keep_session,
            timeout=CONNECT_SECONDS_MAX,
            command_timeout=READ_SECONDS_MAX,
            server_settings=SERVER_SETTINGS,
        )
        return cls(pool)

    async def rows(self, sql: str, *values: Any) -> list[Record]:
        """All rows of a bounded query; raises JournalUnavailable when the server does not answer."""
        try:
            found: list[Record] = await self._pool.fetch(sql, *values)
        except asyncpg.DataError:
            return []  # a value that the database cannot hold (NUL, say) is in none of its rows
        except (*LOST, asyncpg.InsufficientResourcesError) as error:
            raise JournalUnavailable(f"the database does not answer: {error!r}") from error
        return found

    async def close(self) -> None:
        """Let the reads under way finish, then disconnect."""
        await self._pool.close()


async def _decode_canonically(connection: Connection) -> None:
    """Amounts come out in their only form, though PostgreSQL keeps trailing zeros."""
    await connection.set_type_codec(
        "numeric", schema="pg_catalog", encoder=str, decoder=lambda text: canonical(Decimal(text)), format="text"
    )


async def _keep_session(_: Connection) -> None:
    """A read leaves nothing behind in its session; the default clean-up would cost a round trip for each."""
