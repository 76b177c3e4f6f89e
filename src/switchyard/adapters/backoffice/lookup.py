"""Single rows of a ledger file, found by their ids. Reads only."""

from collections.abc import Sequence
from typing import Any

import msgspec

from switchyard.adapters.backoffice import schema
from switchyard.adapters.backoffice.ledger import SqliteLedger, time_of
from switchyard.adapters.backoffice.rows import account_of, tables_of
from switchyard.domain.books.entries import BookedAccount
from switchyard.domain.ids import AccountId
from switchyard.ports.books import ENTRIES_MAX, AccountTables, StoredEntry

ENTRIES = "SELECT number, text, hash FROM json_each(?) CROSS JOIN entries ON entry_id = value LIMIT ?"
# One statement sees one moment.
TABLES = """
SELECT
    entries,
    hash,
    (SELECT json_group_array(body) FROM positions WHERE account_id = ?1),
    (SELECT json_group_array(json_array(account, unit, amount)) FROM balances WHERE account_id = ?1)
FROM accounts WHERE account_id = ?1
"""


class SqliteLedgerLookup:
    """ports.books.LedgerLookup of one file."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self._ledger = ledger

    async def find_entries(self, entry_ids: Sequence[str]) -> list[StoredEntry]:
        """The entries that exist."""
        ids = msgspec.json.encode(entry_ids).decode()
        rows = await self._rows(ENTRIES, (ids, ENTRIES_MAX))
        return [StoredEntry(*row) for row in rows]

    async def find_account(self, account: AccountId) -> BookedAccount | None:
        """The account's row."""
        ids = msgspec.json.encode([account]).decode()
        rows = await self._rows(schema.FIND_ACCOUNTS, (ids,))
        return account_of(rows[0], time_of) if rows else None

    async def tables(self, account: AccountId) -> AccountTables:
        """The account's tables and head at one moment."""
        rows = await self._rows(TABLES, (account,))
        return tables_of(account, rows[0] if rows else None)

    async def _rows(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return await self._ledger.read(lambda connection: connection.execute(sql, values).fetchall())
