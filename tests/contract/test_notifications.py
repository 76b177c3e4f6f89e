"""Commit notifications from other processes, on PostgreSQL."""

import asyncio

import asyncpg

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.domain.journal.changes import Change, Cursor
from tests.support.build import an_accept
from tests.support.journal_checks import commit
from tests.support.polling import until


class Listener:
    """A callback that a test can wait for."""

    def __init__(self) -> None:
        self._called = asyncio.Event()

    def call(self) -> None:
        self._called.set()

    async def next(self) -> None:
        async with asyncio.timeout(60):
            await self._called.wait()
        self._called.clear()


async def test_a_commit_of_another_process_is_notified(postgres_url: str) -> None:
    reader, writer = await PostgresDatabase.open(postgres_url), await PostgresDatabase.open(postgres_url)
    listener = Listener()
    reader.listen(listener.call)
    await listener.next()  # a new subscription calls back once, for the commits before it

    await commit(writer.journal, an_accept(), an_accept())
    await listener.next()

    await reader.close()
    await writer.close()


async def test_notifications_resume_after_the_connection_was_lost(postgres_url: str) -> None:
    reader, writer = await PostgresDatabase.open(postgres_url), await PostgresDatabase.open(postgres_url)
    listener = Listener()
    reader.listen(listener.call)
    await listener.next()
    administrator = await asyncpg.connect(postgres_url)
    listeners = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    [lost] = await administrator.fetch(listeners)

    await administrator.execute("SELECT pg_terminate_backend($1)", lost["pid"])
    await listener.next()  # the new subscription calls back for the commits that it may have missed
    await commit(writer.journal, an_accept())
    await listener.next()

    await administrator.close()
    await reader.close()
    await writer.close()


async def test_a_group_that_only_moves_a_cursor_sends_no_notification(postgres_url: str) -> None:
    database = await PostgresDatabase.open(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    payloads: list[str] = []
    await connection.add_listener("switchyard", lambda *message: payloads.append(message[-1]))

    await commit(database.journal, Change(cursors=(Cursor(name="audit", epoch=1, seq=1, hash="f" * 64),)))
    await commit(database.journal, an_accept(), an_accept())

    await until(lambda: bool(payloads))
    assert payloads == ["0:2"]
    await connection.close()
    await database.close()
