"""The schema's version: brought up to date by `upgrade`, checked before anything is read."""

from switchyard.adapters.postgres.connection import Connection
from switchyard.adapters.schema_files import check_version, programs, schema_files

# Two upgraders wait for each other; the second one finds nothing left to do.
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
    """Apply what is missing, all of it or nothing; returns the version."""
    files = schema_files(__package__)
    await connection.execute(_LOCK)  # released with the session
    await connection.execute(_CREATE)
    found = await version(connection)
    if found > len(files):
        check_version(found, len(files))
    if found < len(files):
        async with connection.transaction():
            for file in files[found:]:
                await connection.execute(file.sql)
                await connection.execute(_RECORD, file.number, file.name)
            for program in programs(__package__):
                await connection.execute(program)
    return len(files)


async def check(connection: Connection) -> None:
    """Reject a database whose schema this version was not written for."""
    check_version(await version(connection), len(schema_files(__package__)))


async def version(connection: Connection) -> int:
    """How far the schema has come; 0 in an empty database."""
    if await connection.fetchval("SELECT to_regclass('schema_version')") is None:
        return 0
    found: int = await connection.fetchval("SELECT coalesce(max(number), 0) FROM schema_version")
    return found
