"""All rows of a ledger file, page by page, for checks. Reads only."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from itertools import groupby
from typing import Any

from switchyard.adapters.backoffice.ledger import SqliteLedger, time_of
from switchyard.adapters.backoffice.rows import account_of, holding_decoder, order_decoder
from switchyard.domain.books.entries import BookedAccount, Leg
from switchyard.domain.books.fold import BalanceKey
from switchyard.domain.books.holdings import Holding, HoldingKey, Result, ResultKey
from switchyard.domain.books.postings import BookedOrder
from switchyard.domain.ids import AccountId, OrderId
from switchyard.ports.books import DumpedEntry, StoredEntry

ACCOUNTS = """
SELECT account_id, entries, hash, reached_at, epoch, seq, halted_seq, halted
FROM accounts WHERE account_id > ? ORDER BY account_id LIMIT ?
"""
ENTRIES = """
SELECT number, text, hash, entry_id FROM entries WHERE account_id = ? AND number > ? ORDER BY number LIMIT ?
"""
LEGS = """
SELECT number, account, unit, amount FROM legs
WHERE account_id = ? AND number > ? AND number <= ? ORDER BY number, leg
"""
ORDERS = "SELECT body FROM orders WHERE order_id > ? ORDER BY order_id LIMIT ?"
HOLDINGS = """
SELECT body FROM positions WHERE account_id = ? AND (strategy, symbol, currency) > (?, ?, ?)
ORDER BY strategy, symbol, currency LIMIT ?
"""
BALANCES = """
SELECT account_id, account, unit, amount FROM balances WHERE account_id = ? AND (unit, account) > (?, ?)
ORDER BY unit, account LIMIT ?
"""


RESULTS = """
SELECT account_id, day, symbol, currency, strategy, realised, strategy_realised, fees, fills FROM results
WHERE account_id = ? AND (day, symbol, currency, strategy) > (?, ?, ?, ?)
ORDER BY day, symbol, currency, strategy LIMIT ?
"""
DAY_BALANCES = """
SELECT account, unit, day, amount FROM day_balances WHERE account_id = ? AND (unit, account, day) > (?, ?, ?)
ORDER BY unit, account, day LIMIT ?
"""


class SqliteLedgerDump:
    """ports.books.LedgerDump of one file."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self._ledger = ledger

    async def dumped_accounts(self, after: AccountId, limit: int) -> list[BookedAccount]:
        """Accounts by id."""
        return [account_of(row, time_of) for row in await self._rows(ACCOUNTS, (after, limit))]

    async def dumped_entries(self, account: AccountId, after: int, limit: int) -> list[DumpedEntry]:
        """Entries of an account with the rows of their legs."""
        entries = await self._rows(ENTRIES, (account, after, limit))
        if not entries:
            return []
        rows = await self._rows(LEGS, (account, after, entries[-1][0]))
        legs = {
            number: tuple(Leg(account, unit, Decimal(amount)) for _, account, unit, amount in group)
            for number, group in groupby(rows, key=lambda row: row[0])
        }
        return [
            DumpedEntry(StoredEntry(number, text, digest), entry_id, legs.get(number, ()))
            for number, text, digest, entry_id in entries
        ]

    async def dumped_orders(self, after: OrderId, limit: int) -> list[BookedOrder]:
        """Orders by id."""
        return [order_decoder.decode(body) for (body,) in await self._rows(ORDERS, (after, limit))]

    async def dumped_holdings(self, after: HoldingKey, limit: int) -> list[Holding]:
        """Positions of an account by symbol and currency."""
        return [holding_decoder.decode(body) for (body,) in await self._rows(HOLDINGS, (*after, limit))]

    async def dumped_balances(self, after: BalanceKey, limit: int) -> list[tuple[BalanceKey, Decimal]]:
        """Balances of an account by unit and ledger account."""
        account_id, account, unit = after
        rows = await self._rows(BALANCES, (account_id, unit, account, limit))
        return [((owner, name, unit), Decimal(amount)) for owner, name, unit, amount in rows]

    async def dumped_results(self, after: ResultKey, limit: int) -> list[tuple[ResultKey, Result]]:
        """Results of an account by day, symbol, currency and strategy."""
        account_id, day, *names = after
        return [
            (
                (row[0], date.fromisoformat(row[1]), row[2], row[3], row[4]),
                Result(realised=Decimal(row[5]), strategy_realised=Decimal(row[6]), fees=Decimal(row[7]), fills=row[8]),
            )
            for row in await self._rows(RESULTS, (account_id, day.isoformat(), *names, limit))
        ]

    async def dumped_day_balances(
        self, after: tuple[BalanceKey, date], limit: int
    ) -> list[tuple[tuple[BalanceKey, date], Decimal]]:
        """Balances of an account at the ends of days, by unit, ledger account and day."""
        (account_id, account, unit), day = after
        rows = await self._rows(DAY_BALANCES, (account_id, unit, account, day.isoformat(), limit))
        return [
            (((account_id, name, unit), date.fromisoformat(day)), Decimal(amount)) for name, unit, day, amount in rows
        ]

    async def _rows(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return await self._ledger.read(lambda connection: connection.execute(sql, values).fetchall())
