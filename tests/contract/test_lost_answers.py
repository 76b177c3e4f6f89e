"""A commit whose reply was lost is repeated until its outcome is known. PostgreSQL only: the others have no network."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from urllib.parse import urlsplit

import asyncpg
import pytest

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.postgres.journal import PostgresJournal
from switchyard.adapters.postgres.reader import Reader
from switchyard.domain.errors import JournalUnavailable, OutcomeUnknown
from switchyard.domain.journal.changes import Committed, Conflict, Outcome
from tests.support.build import an_accept
from tests.support.journal_checks import commit, verified
from tests.support.memory.clock import START
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.serving import serving
from tests.support.upgraded import upgraded_database

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[PostgresDatabase]:
    database = await PostgresDatabase.open(postgres_url)
    yield database
    await database.close()


@pytest.fixture
async def administrator(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


class CuttingProxy:
    """A TCP proxy; while `is_armed`, it closes the connection instead of forwarding the next reply."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self.is_armed = False
        self.cuts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, sink = await asyncio.open_connection(self._host, self._port)
        forwarding = asyncio.create_task(self._forward(reader, sink))
        try:
            while chunk := await upstream.read(65536):
                if self.is_armed:
                    self.is_armed = False
                    self.cuts += 1
                    break
                writer.write(chunk)
        finally:
            forwarding.cancel()
            sink.close()

    async def _forward(self, reader: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65536):
                sink.write(chunk)


async def test_a_commit_whose_reply_was_lost_is_written_once(database: PostgresDatabase, postgres_url: str) -> None:
    proxy = CuttingProxy(postgres_url)
    reader = await Reader.open(postgres_url)
    parts = urlsplit(postgres_url)
    async with serving(proxy.serve) as port:
        journal = PostgresJournal(parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}").geturl(), reader)
        await commit(journal, an_accept())
        taken = an_accept(key="taken")
        await commit(journal, taken)
        group = [an_accept(key="one"), an_accept(key="taken", client_id="other"), an_accept()]

        proxy.is_armed = True
        outcomes = await journal.append(0, "cut", group, START)

        assert proxy.cuts == 1
        assert outcomes == [Committed(3), Conflict(taken.keys[0]), Committed(4)]
        assert len(await verified(journal)) == 4
        await journal.close()
        await reader.close()


async def test_a_commit_survives_a_terminated_session(
    database: PostgresDatabase, administrator: asyncpg.Connection
) -> None:
    await commit(database.journal, an_accept())
    accepted = an_accept()
    async with administrator.transaction():
        await administrator.execute("SELECT FROM journal_heads FOR UPDATE")
        appending = asyncio.create_task(database.journal.append(0, "interrupted", [accepted], START))
        await until(lambda: is_waiting(administrator))

        await administrator.execute(f"SELECT pg_terminate_backend(pid) FROM ({WAITING}) AS waiting")

    assert await appending == [Committed(2)]
    assert await database.journal.append(0, "interrupted", [accepted], START) == [Committed(2)]
    assert len(await verified(database.journal)) == 2


async def test_a_command_that_the_server_cancelled_is_repeated(
    database: PostgresDatabase, administrator: asyncpg.Connection
) -> None:
    await commit(database.journal, an_accept())
    async with administrator.transaction():
        await administrator.execute("SELECT FROM journal_heads FOR UPDATE")
        appending = asyncio.create_task(database.journal.append(0, "interrupted", [an_accept()], START))
        await until(lambda: is_waiting(administrator))

        await administrator.execute(f"SELECT pg_cancel_backend(pid) FROM ({WAITING}) AS waiting")

    assert await appending == [Committed(2)]


async def test_the_journal_works_after_a_cancelled_append(
    database: PostgresDatabase, administrator: asyncpg.Connection
) -> None:
    await commit(database.journal, an_accept())
    async with administrator.transaction():
        await administrator.execute("SELECT FROM journal_heads FOR UPDATE")
        appending = asyncio.create_task(database.journal.append(0, "cancelled", [an_accept()], START))
        await until(lambda: is_waiting(administrator))
        appending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await appending

    await commit(database.journal, an_accept())
    await verified(database.journal)


async def test_a_missing_reply_raises_outcome_unknown(postgres_url: str, administrator: asyncpg.Connection) -> None:
    reader = await Reader.open(postgres_url)
    journal = PostgresJournal(postgres_url, reader, settle_seconds_max=0.5)
    await commit(journal, an_accept())
    accepted = an_accept()

    async with administrator.transaction():
        await administrator.execute("SELECT FROM journal_heads FOR UPDATE")
        with pytest.raises(OutcomeUnknown):
            await journal.append(0, "unknown", [accepted], START)

    # A repeated append returns the outcome.
    assert await journal.append(0, "unknown", [accepted], START) == [Committed(2)]
    assert len(await verified(journal)) == 2
    await journal.close()
    await reader.close()


async def is_waiting(administrator: asyncpg.Connection) -> bool:
    return bool(await administrator.fetch(WAITING))


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that the test may stop and kill."""
    with PostgresServer() as server:
        yield server


async def test_a_server_that_is_down_raises_journal_unavailable(server: PostgresServer) -> None:
    url = await upgraded_database(server)
    database = await PostgresDatabase.open(url)
    accepted = an_accept()
    server.stop()

    with pytest.raises(JournalUnavailable):
        await database.journal.append(0, "down", [accepted], START)
    with pytest.raises(JournalUnavailable):
        await database.journal.head(0)

    server.start()
    assert await database.journal.append(0, "down", [accepted], START) == [Committed(1)]
    assert len(await verified(database.journal)) == 1
    await database.close()


async def test_a_commit_whose_wait_for_the_standby_was_cancelled_is_not_acknowledged_before_the_standby_has_it(
    server: PostgresServer,
) -> None:
    url = await upgraded_database(server)
    administrator = await asyncpg.connect(url)
    await administrator.execute("ALTER SYSTEM SET synchronous_standby_names = 'away'")
    await administrator.close()
    server.stop()
    server.start()
    administrator = await asyncpg.connect(url, server_settings={"synchronous_commit": "local"})
    database = await PostgresDatabase.open(url)
    cancelled: set[int] = set()

    async def is_waiting_again() -> bool:
        pids = await administrator.fetch("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        assert not appending.done(), "acknowledged without the standby"
        return bool({record["pid"] for record in pids} - cancelled)

    appending = asyncio.create_task(database.journal.append(0, "unconfirmed", [an_accept()], START))
    for _ in range(2):
        await until(is_waiting_again)
        [waiting] = await administrator.fetch("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        cancelled.add(waiting["pid"])
        await administrator.execute("SELECT pg_cancel_backend($1)", waiting["pid"])
    await until(is_waiting_again)
    assert await administrator.fetchval("SELECT count(*) FROM orders") == 1, "committed, on this server only"

    await administrator.execute("ALTER SYSTEM RESET synchronous_standby_names")
    await administrator.execute("SELECT pg_reload_conf()")
    assert await appending == [Committed(1)]
    await administrator.close()
    await database.close()


async def test_acknowledged_groups_survive_a_crash_of_the_server(server: PostgresServer) -> None:
    url = await upgraded_database(server)
    database = await PostgresDatabase.open(url)
    groups = {f"group-{number}": [an_accept(key=f"{number}-{n}") for n in range(5)] for number in range(400)}
    acknowledged: dict[str, list[Outcome]] = {}

    async def write() -> None:
        for group_id, changes in groups.items():
            with contextlib.suppress(OutcomeUnknown, JournalUnavailable):
                acknowledged[group_id] = await database.journal.append(0, group_id, changes, START)

    def has_acknowledged(count: int) -> bool:
        return len(acknowledged) >= count or writing.done()

    writing = asyncio.create_task(write())
    for crash_after in (50, 100, 150):
        await until(partial(has_acknowledged, crash_after))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    await writing

    # A repeated group returns its first outcomes if it was committed, and is committed now if it was not.
    settled = {group_id: await database.journal.append(0, group_id, groups[group_id], START) for group_id in groups}
    assert acknowledged
    assert {group_id: settled[group_id] for group_id in acknowledged} == acknowledged
    written = [event.order_id for event in await verified(database.journal)]
    assert sorted(map(str, written)) == sorted(
        change.orders[0].order_id for group in groups.values() for change in group
    )
    await database.close()
