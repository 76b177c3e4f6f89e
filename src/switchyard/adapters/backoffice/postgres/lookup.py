"""Single rows of the books in PostgreSQL, found by their ids. Reads only."""

from collections.abc import Sequence

from switchyard.adapters.backoffice.postgres import schema
from switchyard.adapters.backoffice.postgres.ledger import PostgresLedger, same
from switchyard.adapters.backoffice.rows import account_of, tables_of
from switchyard.domain.books.entries import BookedAccount
from switchyard.domain.ids import AccountId
from switchyard.ports.books import ENTRIES_MAX, AccountTables, StoredEntry

ENTRIES = "SELECT number, text, hash FROM entries WHERE entry_id = ANY($1::text[]) LIMIT $2"
ACCOUNT = f"SELECT {schema.ACCOUNT_COLUMNS} FROM accounts WHERE account_id = $1"
# One statement sees one moment.
TABLES = """
SELECT
    entries,
    hash,
    (SELECT json_agg(body)::text FROM positions WHERE account_id = $1),
    (SELECT json_agg(json_build_array(account, unit, amount::text))::text FROM balances WHERE account_id = $1)
FROM accounts WHERE account_id = $1
"""


class PostgresLedgerLookup:
    """ports.books.LedgerLookup of one schema."""

    def __init__(self, ledger: PostgresLedger) -> None:
        self._ledger = ledger

    async def find_entries(self, entry_ids: Sequence[str]) -> list[StoredEntry]:
        """The entries that exist."""
        return [StoredEntry(*row) for row in await self._ledger.rows(ENTRIES, list(entry_ids), ENTRIES_MAX)]

    async def find_account(self, account: AccountId) -> BookedAccount | None:
        """The account's row."""
        rows = await self._ledger.rows(ACCOUNT, account)
        return account_of(rows[0], same) if rows else None

    async def tables(self, account: AccountId) -> AccountTables:
        """The account's tables and head at one moment."""
        rows = await self._ledger.rows(TABLES, account)
        return tables_of(account, rows[0] if rows else None)
