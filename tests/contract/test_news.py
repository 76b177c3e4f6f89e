"""News from other processes: PostgreSQL tells who listens."""

import asyncio

import asyncpg

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.domain.changes import Change, Cursor
from tests.support.build import an_accept
from tests.support.journal_checks import commit
from tests.support.polling import until


class Ear:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.calls = 0
        self.news = asyncio.Event()

    def hear(self) -> None:
        self.calls += 1
        self.news.set()

    async def next(self) -> None:
        async with asyncio.timeout(60):
            await self.news.wait()
        self.news.clear()


async def test_a_commit_elsewhere_is_heard(postgres_url: str) -> None:
    reader, writer = await PostgresDatabase.open(postgres_url), await PostgresDatabase.open(postgres_url)
    ear = Ear()
    reader.listen(ear.hear)
    await ear.next()  # what was written before is news to whoever begins to listen

    await commit(writer.journal, an_accept(), an_accept())
    await ear.next()

    await reader.close()
    await writer.close()


async def test_news_come_again_after_the_connection_was_lost(postgres_url: str) -> None:
    reader, writer = await PostgresDatabase.open(postgres_url), await PostgresDatabase.open(postgres_url)
    ear = Ear()
    reader.listen(ear.hear)
    await ear.next()
    administrator = await asyncpg.connect(postgres_url)
    listeners = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    [lost] = await administrator.fetch(listeners)

    await administrator.execute("SELECT pg_terminate_backend($1)", lost["pid"])
    await ear.next()  # whatever was missed meanwhile is looked for as soon as somebody listens again
    await commit(writer.journal, an_accept())
    await ear.next()

    await administrator.close()
    await reader.close()
    await writer.close()


async def test_a_cursor_that_moves_is_no_news(postgres_url: str) -> None:
    database = await PostgresDatabase.open(postgres_url)
    listener = await asyncpg.connect(postgres_url)
    told: list[str] = []
    await listener.add_listener("switchyard", lambda *message: told.append(message[-1]))

    await commit(database.journal, Change(cursors=(Cursor(name="audit", epoch=1, seq=1, hash="f" * 64),)))
    await commit(database.journal, an_accept(), an_accept())

    await until(lambda: bool(told))
    assert told == ["0:2"]
    await listener.close()
    await database.close()
