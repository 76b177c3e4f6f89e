"""Takes away, in a real database, what keeps one key from standing for two orders.

The append looks a key up before it writes, and there are unique indexes: of the key store's key, and of the id that the
venue sees. With an index goes the ON CONFLICT clause that names it: as long as that is there, an append without the
index fails, and nothing is accepted at all.
"""

import re
from pathlib import Path

import apsw
import asyncpg

LEDGER_CLAUSE = re.compile(r"\s+ON CONFLICT \(account_id, operation, idempotency_key\) DO UPDATE SET[^;]*(?=;)")


def drop_indexes_of_sqlite(path: Path) -> None:
    """Make the tables anew, without their unique columns: SQLite cannot drop the index behind one."""
    connection = apsw.Connection(str(path))
    made = dict(connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))
    indexes = [sql for name, sql in made.items() if name.startswith("orders_")]
    with connection:
        connection.execute("DROP TRIGGER append_group_is_taken; DROP TABLE orders; DROP TABLE idempotency_keys")
        connection.execute(without(made["orders"], r"(?<=venue_client_order_id TEXT NOT NULL) UNIQUE"))
        key = r",\s+PRIMARY KEY \(account_id, operation, idempotency_key\)(?=\s*\))"
        connection.execute(without(without(made["idempotency_keys"], key), ", WITHOUT ROWID"))
        connection.execute(without(made["append_group_is_taken"], LEDGER_CLAUSE))
        for index in indexes:
            connection.execute(index)
    connection.close()


async def drop_indexes_of_postgres(url: str) -> None:
    """Drop the constraints, with the indexes behind them."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            """
            ALTER TABLE idempotency_keys DROP CONSTRAINT idempo_ledger_pkey;
            ALTER TABLE orders DROP CONSTRAINT orders_venue_client_id_key;
            ALTER TABLE outbox_orders DROP CONSTRAINT outbox_orders_venue_client_id_kind_number_key;
            """
        )
        await connection.execute(without(await _append_group(connection), LEDGER_CLAUSE))
    finally:
        await connection.close()


async def stop_looking_on_postgres(url: str) -> None:
    """The append no longer asks whether a key is taken, nor the id that the venue sees."""
    connection = await asyncpg.connect(url)
    try:
        sql = await _append_group(connection)
        sql = without(sql, r"\s+OR wanted\.version = 1 AND \(\s+SELECT true FROM orders[^)]*\)")
        looks = r"wanted\.version - 1 <> coalesce\(\(\s+SELECT present\.version FROM idempotency_keys.*?\), 0\)"
        await connection.execute(without(sql, looks, "false"))
    finally:
        await connection.close()


async def _append_group(connection: "asyncpg.Connection[asyncpg.Record]") -> str:
    sql: str = await connection.fetchval("SELECT pg_get_functiondef('append_group'::regproc)")
    return sql


def without(sql: str, what: str | re.Pattern[str], instead: str = "") -> str:
    """The statement without its one such part; a schema that no longer has it wants another bug planted."""
    changed, count = re.subn(what, instead, sql, flags=0 if isinstance(what, re.Pattern) else re.DOTALL)
    assert count == 1, f"{what} occurs {count} times in {sql}"
    return changed
