"""The schema: made in one transaction, upgraded step by step, and used only in the version that the code needs."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import apsw
import asyncpg
import pytest

from switchyard.adapters.postgres import migrations as postgres_migrations
from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.sqlite import migrations as sqlite_migrations
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.adapters.tables import STATE_TABLES, SchemaFile, schema_files
from switchyard.domain.errors import CannotStart, SchemaMismatch
from tests.support.build import an_accept
from tests.support.databases import SqlDatabase, run_sql
from tests.support.journal_checks import commit, verified
from tests.support.postgres import PostgresServer


class Place(NamedTuple):
    """Where a database is or will be, and the module that upgrades it."""

    open: Callable[[], Awaitable[SqlDatabase]]
    upgrade: Callable[[], Awaitable[int]]
    execute: Callable[[str], Awaitable[None]]
    migrations: ModuleType
    break_program: str
    set_version: str

    @property
    def newest(self) -> int:
        assert self.migrations.__package__ is not None
        return len(schema_files(self.migrations.__package__))


def sqlite_place(path: Path) -> Place:
    async def execute(sql: str) -> None:
        connection = apsw.Connection(str(path))
        connection.execute(sql)
        connection.close()

    return Place(
        open=lambda: SqliteDatabase.open(path),
        upgrade=lambda: SqliteDatabase.upgrade(path),
        execute=execute,
        migrations=sqlite_migrations,
        break_program="DROP TRIGGER append_group_insert",
        set_version="PRAGMA user_version = {}",
    )


def postgres_place(url: str) -> Place:
    async def execute(sql: str) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(sql)
        await connection.close()

    return Place(
        open=lambda: PostgresDatabase.open(url),
        upgrade=lambda: PostgresDatabase.upgrade(url),
        execute=execute,
        migrations=postgres_migrations,
        break_program="DROP FUNCTION append_group",
        set_version="INSERT INTO schema_version (number, name) VALUES ({}, 'a test')",
    )


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return sqlite_place(tmp_path / "switchyard.db")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return postgres_place(server.create_database())


def add_step(place: Place, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that this version of the code has one more schema step."""

    def with_one_more(package: str) -> list[SchemaFile]:
        files = schema_files(package)
        return [*files, SchemaFile(len(files) + 1, "the_next_step.sql", sql)]

    monkeypatch.setattr(place.migrations, "schema_files", with_one_more)


async def test_an_empty_database_says_that_it_needs_an_upgrade(place: Place) -> None:
    await place.execute("SELECT 1")  # SQLite: the file exists from the first connection on
    with pytest.raises(SchemaMismatch, match=f"version 0, .* needs {place.newest}: run `switchyard db upgrade`"):
        await place.open()


def test_a_missing_sqlite_file_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"there is no database .*SWITCHYARD_DATA_DIR"):
        asyncio.run(SqliteDatabase.open(tmp_path / "switchyard.db"))
    assert list(tmp_path.iterdir()) == []


async def test_a_schema_that_is_too_old_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    await place.upgrade()
    add_step(place, "SELECT 1", monkeypatch)

    with pytest.raises(SchemaMismatch, match=f"version {place.newest}, .* needs {place.newest + 1}"):
        await place.open()


async def test_a_schema_that_is_too_new_says_so_and_is_left_alone(place: Place) -> None:
    await place.upgrade()
    await place.execute(place.set_version.format(place.newest + 1))

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


async def test_an_upgrade_runs_the_new_steps_and_replaces_the_programs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.upgrade()
    database = await place.open()
    await commit(database.journal, an_accept())
    await database.close()
    await place.execute(place.break_program)
    add_step(place, "CREATE TABLE added (name TEXT)", monkeypatch)

    assert await place.upgrade() == place.newest + 1

    database = await place.open()
    await commit(database.journal, an_accept())
    assert len(await verified(database.journal)) == 2
    assert await run_sql(database, "SELECT count(*) FROM added") == [(0,)]
    await database.close()


async def test_an_upgrade_that_fails_leaves_the_old_version_in_use(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.upgrade()
    with monkeypatch.context() as patch:
        add_step(place, "CREATE TABLE added (name TEXT); SELECT * FROM missing", patch)
        with pytest.raises((apsw.SQLError, CannotStart), match="missing"):
            await place.upgrade()

    database = await place.open()
    await commit(database.journal, an_accept())
    with pytest.raises((apsw.SQLError, asyncpg.UndefinedTableError), match="added"):
        await run_sql(database, "SELECT * FROM added")
    await database.close()


async def test_each_table_has_the_columns_of_its_struct(sql_database: SqlDatabase) -> None:
    for table in STATE_TABLES:
        if isinstance(sql_database, PostgresDatabase):
            columns = "SELECT column_name FROM information_schema.columns WHERE table_name = '{}'"
        else:
            columns = "SELECT name FROM pragma_table_info('{}')"
        found = [name for (name,) in await run_sql(sql_database, columns.format(table.name))]
        assert sorted(found) == sorted(table.columns)


async def test_two_upgraders_at_once_do_not_harm_each_other(postgres_server: PostgresServer) -> None:
    place = postgres_place(postgres_server.create_database())

    assert await asyncio.gather(*(place.upgrade() for _ in range(4))) == [place.newest] * 4


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://postgres@127.0.0.1:1/x", "cannot be reached"),
        ("postgresql://postgres@no-such-host.invalid/x", "cannot be reached"),
        ("postgresql://postgres@127.0.0.1:port/x", "not a PostgreSQL URL"),
        ("mysql://127.0.0.1/x", "not a PostgreSQL URL"),
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
