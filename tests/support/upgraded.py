"""PostgreSQL databases with the schema, each as new: a new one takes half a second of making and of removing its files.

A database whose test has ended is used again, without its rows and with another identity; one whose tables were changed
is not.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

import asyncpg

from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.postgres.identity import set_installation
from switchyard.adapters.system_clock import random_installation
from tests.support.postgres import PostgresServer

_END_SESSIONS = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
# Tables, indexes, columns, triggers and programs, in a text that two databases with the same schema share.
_SHAPE = """
SELECT md5(string_agg(line, ' ' ORDER BY line)) FROM (
    SELECT format('%s %s %s', relkind, relname, relhasindex) AS line FROM pg_class
    WHERE relnamespace NOT IN (SELECT oid FROM pg_namespace WHERE nspname LIKE 'pg\\_%')
    UNION ALL SELECT format('%s.%s %s %s', attrelid::regclass, attname, atttypid, attnotnull) FROM pg_attribute
    WHERE attrelid::regclass::text NOT LIKE 'pg\\_%' AND attnum > 0
    UNION ALL SELECT format('%s %s %s', tgrelid::regclass, tgname, tgenabled) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT format('%s %s', proname, md5(prosrc)) FROM pg_proc WHERE oid >= 16384
) AS lines
"""
_TABLES = """
SELECT oid::regclass::text FROM pg_class
WHERE relkind IN ('r', 'p') AND NOT relispartition AND oid >= 16384 ORDER BY 1
"""


class Upgraded:
    """The databases of one server: a template with the schema, and those that wait to be used again."""

    def __init__(self, template: str, shape: str, rows: dict[str, str | None]) -> None:
        self.template = template
        self.shape = shape
        self.rows = rows
        """The rows of each table in the template, as JSON; None where it has none."""
        self.free: list[str] = []


_of_servers: WeakKeyDictionary[PostgresServer, Upgraded] = WeakKeyDictionary()


async def upgraded_database(server: PostgresServer) -> str:
    """The URL of a database with the schema, no orders, and an identity of its own."""
    databases = _of_servers.get(server)
    if databases is None:
        databases = _of_servers[server] = await _with_template(server)
    while databases.free:
        url = databases.free.pop()
        if await _cleared(url, databases):
            return url
    url = server.create_database(databases.template)
    connection = await asyncpg.connect(url)
    try:
        await set_installation(connection, random_installation())
    finally:
        await connection.close()
    return url


@asynccontextmanager
async def borrowed_database(server: PostgresServer) -> AsyncIterator[str]:
    """The same, for another test afterwards: nobody may use it then."""
    url = await upgraded_database(server)
    yield url
    _of_servers[server].free.append(url)


async def _with_template(server: PostgresServer) -> Upgraded:
    url = server.create_database()
    await PostgresDatabase.upgrade(url)
    connection = await asyncpg.connect(url)
    try:
        rows = {
            table: await connection.fetchval(f"SELECT json_agg(each)::text FROM {table} AS each")
            for table in await _tables(connection)
        }
        shape: str = await connection.fetchval(_SHAPE)
    finally:
        await connection.close()
    return Upgraded(url.rpartition("/")[2], shape, rows)


async def _cleared(url: str, databases: Upgraded) -> bool:
    """Give the tables the rows of the template; false where the database is not like it any more."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_END_SESSIONS)
        if await connection.fetchval(_SHAPE) != databases.shape:
            return False
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")  # no triggers
            for table, rows in databases.rows.items():
                await connection.execute(f"DELETE FROM {table}")
                if rows is not None:
                    await connection.execute(
                        f"INSERT INTO {table} SELECT * FROM json_populate_recordset(NULL::{table}, $1)", rows
                    )
            await set_installation(connection, random_installation())
    finally:
        await connection.close()
    return True


async def _tables(connection: Any) -> list[str]:
    return [table for (table,) in await connection.fetch(_TABLES)]
