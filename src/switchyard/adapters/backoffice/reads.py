"""Reads of the books beside the ledger's own: all rows, for checks; rows by their ids; P&L and closing figures."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from itertools import groupby

from switchyard.adapters.backoffice import statements
from switchyard.adapters.backoffice.ledger import SqlLedger, balance_of
from switchyard.adapters.backoffice.rows import account_of, decode_holding, order_decoder, result_of, tables_of
from switchyard.adapters.backoffice.session import Row
from switchyard.adapters.backoffice.statements import ACCOUNT_COLUMNS, RESULT_COLUMNS
from switchyard.domain.books.entries import BookedAccount, Leg
from switchyard.domain.books.fold import BalanceKey
from switchyard.domain.books.holdings import Holding, HoldingKey, Result, ResultKey
from switchyard.domain.books.postings import BookedOrder
from switchyard.domain.ids import AccountId, OrderId
from switchyard.ports.books import ENTRIES_MAX, AccountTables, Balance, DumpedEntry, ResultGroup, ResultsBy, StoredEntry

ACCOUNTS = f"SELECT {ACCOUNT_COLUMNS} FROM accounts WHERE account_id > $1 ORDER BY account_id LIMIT $2"
ENTRIES = """
SELECT number, text, hash, entry_id FROM entries WHERE account_id = $1 AND number > $2 ORDER BY number LIMIT $3
"""
LEGS = """
SELECT number, account, unit, amount FROM legs
WHERE account_id = $1 AND number > $2 AND number <= $3 ORDER BY number, leg
"""
ORDERS = "SELECT body FROM orders WHERE order_id > $1 ORDER BY order_id LIMIT $2"
HOLDINGS = """
SELECT body FROM positions WHERE account_id = $1 AND (strategy, symbol, currency) > ($2, $3, $4)
ORDER BY strategy, symbol, currency LIMIT $5
"""
BALANCES = """
SELECT account_id, account, unit, amount FROM balances WHERE account_id = $1 AND (unit, account) > ($2, $3)
ORDER BY unit, account LIMIT $4
"""
RESULTS = f"""
SELECT {RESULT_COLUMNS} FROM results
WHERE account_id = $1 AND (day, symbol, currency, strategy) > ($2, $3, $4, $5)
ORDER BY day, symbol, currency, strategy LIMIT $6
"""
DAY_BALANCES = """
SELECT account, unit, day, amount FROM day_balances WHERE account_id = $1 AND (unit, account, day) > ($2, $3, $4)
ORDER BY unit, account, day LIMIT $5
"""


class SqlLedgerDump:
    """ports.books.LedgerDump."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._engine = ledger.engine

    async def dumped_accounts(self, after: AccountId, limit: int) -> list[BookedAccount]:
        """Accounts by id."""
        return await self._engine.read(account_of, ACCOUNTS, after, limit)

    async def dumped_entries(self, account: AccountId, after: int, limit: int) -> list[DumpedEntry]:
        """Entries of an account with the rows of their legs."""
        entries = await self._engine.read(tuple, ENTRIES, account, after, limit)
        if not entries:
            return []
        rows = await self._engine.read(tuple, LEGS, account, after, entries[-1][0])
        legs = {
            number: tuple(Leg(name, unit, Decimal(amount)) for _, name, unit, amount in group)
            for number, group in groupby(rows, key=lambda row: row[0])
        }
        return [
            DumpedEntry(StoredEntry(number, text, digest), entry_id, legs.get(number, ()))
            for number, text, digest, entry_id in entries
        ]

    async def dumped_orders(self, after: OrderId, limit: int) -> list[BookedOrder]:
        """Orders by id."""
        return await self._engine.read(lambda row: order_decoder.decode(row[0]), ORDERS, after, limit)

    async def dumped_holdings(self, after: HoldingKey, limit: int) -> list[Holding]:
        """Positions of an account by strategy, symbol and currency."""
        return await self._engine.read(decode_holding, HOLDINGS, *after, limit)

    async def dumped_balances(self, after: BalanceKey, limit: int) -> list[tuple[BalanceKey, Decimal]]:
        """Balances of an account by unit and ledger account."""
        account_id, account, unit = after
        rows = await self._engine.read(tuple, BALANCES, account_id, unit, account, limit)
        return [((owner, name, unit), Decimal(amount)) for owner, name, unit, amount in rows]

    async def dumped_results(self, after: ResultKey, limit: int) -> list[tuple[ResultKey, Result]]:
        """Results of an account by day, symbol, currency and strategy."""
        return await self._engine.read(_result, RESULTS, *after, limit)

    async def dumped_day_balances(
        self, after: tuple[BalanceKey, date], limit: int
    ) -> list[tuple[tuple[BalanceKey, date], Decimal]]:
        """Balances of an account at the ends of days, by unit, ledger account and day."""
        (account_id, account, unit), day = after
        rows = await self._engine.read(tuple, DAY_BALANCES, account_id, unit, account, day, limit)
        return [(((account_id, name, unit), _day(day)), Decimal(amount)) for name, unit, day, amount in rows]


def _result(row: Row) -> tuple[ResultKey, Result]:
    account, day, symbol, currency, strategy, *amounts = row
    return (account, _day(day), symbol, currency, strategy), result_of(amounts)


def _day(value: date | str) -> date:
    return date.fromisoformat(value) if isinstance(value, str) else value


class SqlLedgerLookup:
    """ports.books.LedgerLookup."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._ledger = ledger
        self._engine = ledger.engine

    async def find_entries(self, entry_ids: Sequence[str]) -> list[StoredEntry]:
        """The entries that exist."""
        sql = self._ledger.statements.find_entries
        return await self._engine.read(lambda row: StoredEntry(*row), sql, list(entry_ids), ENTRIES_MAX)

    async def find_account(self, account: AccountId) -> BookedAccount | None:
        """The account's row."""
        found = await self._engine.read(account_of, statements.ACCOUNT, account)
        return found[0] if found else None

    async def tables(self, account: AccountId) -> AccountTables:
        """The account's tables and head at one moment."""
        rows = await self._engine.read(tuple, self._ledger.statements.tables, account)
        return tables_of(account, rows[0] if rows else None)


class SqlLedgerReports:
    """ports.books.LedgerReports."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._engine = ledger.engine

    async def results(
        self, account: AccountId, by: ResultsBy, days: tuple[date, date], after: tuple[str, str], limit: int
    ) -> list[ResultGroup]:
        """Results by day, symbol or strategy, and currency."""
        return await self._engine.results(by, limit, account, *days, *after)

    async def closing_balances(self, account: AccountId, day: date, after_unit: str, limit: int) -> list[Balance]:
        """The money accounts of the next currencies at the end of a day."""
        return await self._engine.read(
            balance_of, self._engine.dialect.closing_balances, account, day, after_unit, limit
        )

    async def closing_holdings(
        self, account: AccountId, day: date, after: tuple[str, str], limit: int
    ) -> list[Holding]:
        """The positions at the end of a day."""
        page = (account, *after, day, limit)
        return await self._engine.read(decode_holding, self._engine.dialect.closing_positions, *page)

    async def open_holdings(self, account: AccountId, strategies: bool, limit: int) -> list[Holding]:
        """The positions that are not flat now."""
        return await self._engine.read(decode_holding, statements.OPEN_POSITIONS, account, strategies, limit)
