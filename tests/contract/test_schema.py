"""A database is used only on the schema that this version was written for."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import asyncpg
import pytest

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.schema_files import schema_files
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.domain.errors import CannotStart, SchemaMismatch
from tests.support.build import an_accept
from tests.support.databases import Database
from tests.support.journal_checks import commit, verified
from tests.support.postgres import PostgresServer


class Place:
    """Where a database is or will be."""

    def __init__(
        self,
        open_database: Callable[[], Awaitable[Database]],
        upgrade: Callable[[], Awaitable[int]],
        pretend: Callable[[int], Awaitable[None]],
        newest: int,
        url: str = "",
    ) -> None:
        self.url = url
        self.open = open_database
        self.upgrade = upgrade
        self.pretend = pretend
        self.newest = newest


def sqlite_place(path: Path) -> Place:
    async def pretend(version: int) -> None:
        connection = apsw.Connection(str(path))
        connection.execute(f"PRAGMA user_version = {version}")
        connection.close()

    newest = len(schema_files("switchyard.adapters.sqlite"))
    return Place(lambda: SqliteDatabase.open(path), lambda: SqliteDatabase.upgrade(path), pretend, newest)


def postgres_place(url: str) -> Place:
    async def pretend(version: int) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute("DELETE FROM schema_version WHERE number > $1", version)
        await connection.execute(
            "INSERT INTO schema_version (number, name) VALUES ($1, 'a test') ON CONFLICT DO NOTHING", version
        )
        await connection.close()

    newest = len(schema_files("switchyard.adapters.postgres"))
    return Place(lambda: PostgresDatabase.open(url), lambda: PostgresDatabase.upgrade(url), pretend, newest, url)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return sqlite_place(tmp_path / "switchyard.db")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return postgres_place(server.create_database())


async def test_an_empty_database_says_that_it_needs_an_upgrade(place: Place) -> None:
    with pytest.raises(SchemaMismatch, match="switchyard db upgrade"):
        await place.open()


async def test_a_schema_that_is_too_old_says_so(place: Place) -> None:
    await place.upgrade()
    await place.pretend(place.newest - 1)

    with pytest.raises(SchemaMismatch, match=f"version {place.newest - 1}.*needs {place.newest}"):
        await place.open()


async def test_a_schema_that_is_too_new_says_so_and_is_left_alone(place: Place) -> None:
    await place.upgrade()
    await place.pretend(place.newest + 1)

    with pytest.raises(SchemaMismatch, match="newer"):
        await place.open()
    with pytest.raises(SchemaMismatch, match="newer"):
        await place.upgrade()


async def test_a_second_upgrade_changes_nothing(place: Place) -> None:
    assert await place.upgrade() == place.newest
    database = await place.open()
    await commit(database.journal, an_accept())
    await database.close()

    assert await place.upgrade() == place.newest

    database = await place.open()
    assert len(await verified(database.journal)) == 1
    await database.close()


OLD_ROW = """
INSERT INTO outbox_orders (order_id, kind, number, venue, venue_client_order_id, status, attempt, next_attempt_at, created_at,
    updated_at, version)
VALUES ('ord_1', 'new', 1, 'sim', 'c1', 'sent', 1, '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z',
    '2026-01-01T00:00:00.000000Z', 3)
"""


async def test_a_database_of_the_second_version_is_brought_up_with_its_rows(
    request: pytest.FixtureRequest, tmp_path: Path, place: Place
) -> None:
    if "sqlite" in request.node.name:
        with apsw.Connection(str(tmp_path / "switchyard.db")) as connection:
            connection.execute(schema_files("switchyard.adapters.sqlite")[0].sql)
            connection.execute(OLD_ROW)
            connection.execute("PRAGMA user_version = 2")
    else:
        old = await asyncpg.connect(place.url)
        await old.execute(schema_files("switchyard.adapters.postgres")[0].sql)
        await old.execute(OLD_ROW)
        await old.execute("CREATE TABLE schema_version (number integer PRIMARY KEY, name text NOT NULL)")
        await old.execute("INSERT INTO schema_version VALUES (1, 'journal'), (2, 'append')")
        await old.close()

    assert await place.upgrade() == place.newest

    database = await place.open()
    await commit(database.journal, an_accept())
    assert len(await verified(database.journal)) == 1
    await database.close()


async def test_two_upgraders_at_once_do_not_harm_each_other(postgres_server: PostgresServer) -> None:
    place = postgres_place(postgres_server.create_database())

    assert await asyncio.gather(*(place.upgrade() for _ in range(4))) == [place.newest] * 4


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://postgres@127.0.0.1:1/x", "cannot be reached"),
        ("postgresql://postgres@no-such-host.invalid/x", "cannot be reached"),
        ("postgresql://postgres@127.0.0.1:port/x", "not one that PostgreSQL understands"),
        ("mysql://127.0.0.1/x", "not one that PostgreSQL understands"),
    ],
)
async def test_a_server_that_cannot_be_reached_rejects_the_start(url: str, message: str) -> None:
    with pytest.raises(CannotStart, match=message):
        await PostgresDatabase.open(url)
    with pytest.raises(CannotStart, match=message):
        await PostgresDatabase.upgrade(url)


async def test_a_missing_database_is_named(postgres_server: PostgresServer) -> None:
    with pytest.raises(CannotStart, match="never_made"):
        await PostgresDatabase.open(postgres_server.url("never_made"))


async def test_a_rejection_does_not_repeat_the_password() -> None:
    with pytest.raises(CannotStart) as rejected:
        await PostgresDatabase.open("postgresql://postgres:s3cret@127.0.0.1:1/x")
    assert "s3cret" not in str(rejected.value)
