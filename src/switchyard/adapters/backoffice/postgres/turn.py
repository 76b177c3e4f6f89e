"""The turn to read the journal into the books in PostgreSQL: a session's advisory lock, free when the session ends."""

import contextlib

import structlog

from switchyard.adapters.postgres.connection import CONNECT_SECONDS_MAX, DATABASE_ERRORS, Connection, connect

log = structlog.get_logger()

# In the namespace of the books' schema lock.
_TAKE = "SELECT pg_try_advisory_lock(hashtext('switchyard backoffice'), 2)"


_TAKE_REBUILT = "SELECT pg_try_advisory_lock(hashtext('switchyard backoffice'), 3)"


async def take_rebuilt(connection: Connection) -> bool:
    """Take the schema in which books are built again, until the session ends; false where another session has it."""
    return bool(await connection.fetchval(_TAKE_REBUILT, timeout=CONNECT_SECONDS_MAX))


class PostgresTurn:
    """ports.turn.Turn of the books of one database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None
        self._has = False

    async def is_ours(self) -> bool:
        """Whether this process has the lock; asks the server each time, so that a lost session is noticed."""
        try:
            if self._connection is None:
                self._connection = await connect(self._url)
            if self._has:
                await self._connection.execute("SELECT 1", timeout=CONNECT_SECONDS_MAX)
            else:
                self._has = bool(await self._connection.fetchval(_TAKE, timeout=CONNECT_SECONDS_MAX))
                if self._has:
                    log.info("backoffice_turn_taken")
        except DATABASE_ERRORS as error:
            log.warning("backoffice_turn_unknown", error=repr(error))
            await self.give_up()
        return self._has

    async def give_up(self) -> None:
        """End the session, which releases the lock."""
        connection, self._connection, self._has = self._connection, None, False
        if connection is not None:
            with contextlib.suppress(*DATABASE_ERRORS):
                await connection.close(timeout=CONNECT_SECONDS_MAX)
