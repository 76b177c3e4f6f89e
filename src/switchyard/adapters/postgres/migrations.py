"""The schema version of a PostgreSQL database: checked before the first read, changed by `upgrade` only."""

from switchyard.adapters.installation import random_installation
from switchyard.adapters.postgres.connection import Connection
from switchyard.adapters.postgres.identity import set_installation
from switchyard.adapters.schema_files import check_version, programs, schema_files
from switchyard.adapters.tables import STATE_TABLES, fragments

# Of two concurrent upgrades, the second one waits and finds nothing left to do.
_LOCK = "SELECT pg_advisory_lock(hashtext('switchyard'), 1)"
_CREATE = """
CREATE TABLE IF NOT EXISTS schema_version (
    number integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""
_RECORD = "INSERT INTO schema_version (number, name) VALUES ($1, $2)"


async def upgrade(connection: Connection) -> int:
    """Apply the missing steps and all programs in one transaction; returns the version."""
    files = schema_files(__package__)
    await connection.execute(_LOCK)  # released when the session ends
    await connection.execute(_CREATE)
    current = await version(connection)
    if current > len(files):
        check_version(current, len(files))
    if current < len(files):
        async with connection.transaction():
            for file in files[current:]:
                await connection.execute(file.sql)
                await connection.execute(_RECORD, file.number, file.name)
            for program in programs(__package__, fragments(STATE_TABLES)):
                await connection.execute(program)
            if current == 0:
                await set_installation(connection, random_installation())
    return len(files)


async def check(connection: Connection) -> None:
    """Raise SchemaMismatch unless the database has the schema version that this code needs."""
    check_version(await version(connection), len(schema_files(__package__)))


async def version(connection: Connection) -> int:
    """The version of the schema; 0 in an empty database."""
    if await connection.fetchval("SELECT to_regclass('schema_version')") is None:
        return 0
    newest: int = await connection.fetchval("SELECT coalesce(max(number), 0) FROM schema_version")
    return newest
