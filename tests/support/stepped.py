"""Steps the wall clock of a PostgreSQL database for all of its processes, as if the server's clock had been set."""

from datetime import timedelta

import asyncpg


async def step_server_clock(database_url: str, ahead: timedelta) -> None:
    """Replace `wall_clock`, the only function that reads the server's clock."""
    seconds = ahead.total_seconds()
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(
            "CREATE OR REPLACE FUNCTION wall_clock() RETURNS timestamptz VOLATILE LANGUAGE sql "
            f"AS 'SELECT clock_timestamp() + interval ''{seconds} s'''"
        )
    finally:
        await connection.close()
