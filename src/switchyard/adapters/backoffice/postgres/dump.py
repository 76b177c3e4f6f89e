"""All rows of the books in PostgreSQL, page by page, for checks. Reads only."""

from datetime import date
from decimal import Decimal
from itertools import groupby

from switchyard.adapters.backoffice.postgres import schema
from switchyard.adapters.backoffice.postgres.ledger import PostgresLedger, same
from switchyard.adapters.backoffice.rows import account_of, holding_decoder, order_decoder
from switchyard.domain.books.entries import BookedAccount, Leg
from switchyard.domain.books.fold import BalanceKey
from switchyard.domain.books.holdings import Holding, HoldingKey, Result, ResultKey
from switchyard.domain.books.postings import BookedOrder
from switchyard.domain.ids import AccountId, OrderId
from switchyard.ports.books import DumpedEntry, StoredEntry

ACCOUNTS = f"SELECT {schema.ACCOUNT_COLUMNS} FROM accounts WHERE account_id > $1 ORDER BY account_id LIMIT $2"
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
RESULTS = """
SELECT account_id, day, symbol, currency, strategy, realised, strategy_realised, fees, fills FROM results
WHERE account_id = $1 AND (day, symbol, currency, strategy) > ($2, $3, $4, $5)
ORDER BY day, symbol, currency, strategy LIMIT $6
"""
DAY_BALANCES = """
SELECT account, unit, day, amount FROM day_balances WHERE account_id = $1 AND (unit, account, day) > ($2, $3, $4)
ORDER BY unit, account, day LIMIT $5
"""


class PostgresLedgerDump:
    """ports.books.LedgerDump of one schema."""

    def __init__(self, ledger: PostgresLedger) -> None:
        self._ledger = ledger

    async def dumped_accounts(self, after: AccountId, limit: int) -> list[BookedAccount]:
        """Accounts by id."""
        return [account_of(row, same) for row in await self._ledger.rows(ACCOUNTS, after, limit)]

    async def dumped_entries(self, account: AccountId, after: int, limit: int) -> list[DumpedEntry]:
        """Entries of an account with the rows of their legs."""
        entries = await self._ledger.rows(ENTRIES, account, after, limit)
        if not entries:
            return []
        rows = await self._ledger.rows(LEGS, account, after, entries[-1][0])
        legs = {
            number: tuple(Leg(name, unit, amount) for _, name, unit, amount in group)
            for number, group in groupby(rows, key=lambda row: row[0])
        }
        return [
            DumpedEntry(StoredEntry(number, text, digest), entry_id, legs.get(number, ()))
            for number, text, digest, entry_id in entries
        ]

    async def dumped_orders(self, after: OrderId, limit: int) -> list[BookedOrder]:
        """Orders by id."""
        return [order_decoder.decode(row[0]) for row in await self._ledger.rows(ORDERS, after, limit)]

    async def dumped_holdings(self, after: HoldingKey, limit: int) -> list[Holding]:
        """Positions of an account by strategy, symbol and currency."""
        return [holding_decoder.decode(row[0]) for row in await self._ledger.rows(HOLDINGS, *after, limit)]

    async def dumped_balances(self, after: BalanceKey, limit: int) -> list[tuple[BalanceKey, Decimal]]:
        """Balances of an account by unit and ledger account."""
        account_id, account, unit = after
        rows = await self._ledger.rows(BALANCES, account_id, unit, account, limit)
        return [((owner, name, unit), amount) for owner, name, unit, amount in rows]

    async def dumped_results(self, after: ResultKey, limit: int) -> list[tuple[ResultKey, Result]]:
        """Results of an account by day, symbol, currency and strategy."""
        return [
            (
                (row[0], row[1], row[2], row[3], row[4]),
                Result(realised=row[5], strategy_realised=row[6], fees=row[7], fills=row[8]),
            )
            for row in await self._ledger.rows(RESULTS, *after, limit)
        ]

    async def dumped_day_balances(
        self, after: tuple[BalanceKey, date], limit: int
    ) -> list[tuple[tuple[BalanceKey, date], Decimal]]:
        """Balances of an account at the ends of days, by unit, ledger account and day."""
        (account_id, account, unit), day = after
        rows = await self._ledger.rows(DAY_BALANCES, account_id, unit, account, day, limit)
        return [(((account_id, name, unit), day), amount) for name, unit, day, amount in rows]
