"""Removes the guards that keep one idempotency key from producing two orders, in a real database.

The guards are the version check, which looks a key up before it writes, and the unique indexes: of the key store's key,
and of the client order id at the venue. On SQLite an index is dropped together with the ON CONFLICT clause that names
it: with the clause alone, every append fails and no order is accepted.
"""

import re
from pathlib import Path

import apsw
import asyncpg

KEY_CLAUSE = re.compile(r"\s+ON CONFLICT \(account_id, operation, idempotency_key\) DO UPDATE SET[^;]*(?=;)")


def drop_indexes_of_sqlite(path: Path) -> None:
    """Recreate the tables without their unique columns: SQLite cannot drop the index behind one."""
    connection = apsw.Connection(str(path))
    schema = dict(connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))
    indexes = [sql for name, sql in schema.items() if name.startswith("orders_")]
    with connection:
        connection.execute("DROP TRIGGER append_group_insert; DROP TABLE orders; DROP TABLE idempotency_keys")
        connection.execute(without(schema["orders"], r"(?<=venue_client_order_id TEXT NOT NULL) UNIQUE"))
        key = r",\s+PRIMARY KEY \(account_id, operation, idempotency_key\)(?=\s*\))"
        connection.execute(without(without(schema["idempotency_keys"], key), ", WITHOUT ROWID"))
        connection.execute(without(schema["append_group_insert"], KEY_CLAUSE))
        for index in indexes:
            connection.execute(index)
    connection.close()


async def drop_indexes_of_postgres(url: str) -> None:
    """Drop the constraints together with the indexes behind them."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            """
            ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_pkey;
            ALTER TABLE orders DROP CONSTRAINT orders_venue_client_order_id_key;
            """
        )
    finally:
        await connection.close()


async def stop_looking_on_postgres(url: str) -> None:
    """Remove the checks of the idempotency key and of the client order id from the version check."""
    connection = await asyncpg.connect(url)
    try:
        sql = await _definition(connection, "conflicting_changes")
        sql = without(sql, r"\s+OR order_bases\[incoming\.ordinality\] = 0 AND \(\s+SELECT true FROM orders[^)]*\)")
        key_check = r"incoming\.version - 1 <> coalesce\(\(\s+SELECT stored\.version FROM idempotency_keys.*?\), 0\)"
        await connection.execute(without(sql, key_check, "false"))
    finally:
        await connection.close()


async def _definition(connection: "asyncpg.Connection[asyncpg.Record]", function: str) -> str:
    sql: str = await connection.fetchval("SELECT pg_get_functiondef($1::text::regproc)", function)
    return sql


def without(sql: str, part: str | re.Pattern[str], instead: str = "") -> str:
    """The statement without the one such part; fails when the schema no longer has it exactly once."""
    changed, count = re.subn(part, instead, sql, flags=0 if isinstance(part, re.Pattern) else re.DOTALL)
    assert count == 1, f"{part} occurs {count} times in {sql}"
    return changed
