"""All rows of a ledger file, page by page, for checks. Reads only."""

from collections.abc import Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any

import msgspec

from switchyard.adapters.backoffice.ledger import SqliteLedger, account_of
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.ledger.accounts import BookedAccount
from switchyard.domain.ledger.books import BalanceKey, HoldingKey
from switchyard.domain.ledger.entries import Leg
from switchyard.domain.ledger.holdings import Holding
from switchyard.domain.ledger.orders import BookedOrder
from switchyard.ports.ledger import StoredEntry
from switchyard.ports.ledger_dump import DumpedEntry

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
SELECT body FROM positions WHERE account_id = ? AND (symbol, currency) > (?, ?) ORDER BY symbol, currency LIMIT ?
"""
BALANCES = """
SELECT account_id, account, unit, amount FROM balances WHERE account_id = ? AND (unit, account) > (?, ?)
ORDER BY unit, account LIMIT ?
"""

_order = msgspec.json.Decoder(BookedOrder)
_holding = msgspec.json.Decoder(Holding)


class SqliteLedgerDump:
    """ports.ledger_dump.LedgerDump of one file."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self._ledger = ledger

    async def dumped_accounts(self, after: AccountId, limit: int) -> list[BookedAccount]:
        """Accounts by id."""
        return [account_of(row) for row in await self._rows(ACCOUNTS, (after, limit))]

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
        return [_order.decode(body) for (body,) in await self._rows(ORDERS, (after, limit))]

    async def dumped_holdings(self, after: HoldingKey, limit: int) -> list[Holding]:
        """Positions of an account by symbol and currency."""
        return [_holding.decode(body) for (body,) in await self._rows(HOLDINGS, (*after, limit))]

    async def dumped_balances(self, after: BalanceKey, limit: int) -> list[tuple[BalanceKey, Decimal]]:
        """Balances of an account by unit and ledger account."""
        account_id, account, unit = after
        rows = await self._rows(BALANCES, (account_id, unit, account, limit))
        return [((owner, name, unit), Decimal(amount)) for owner, name, unit, amount in rows]

    async def _rows(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return await self._ledger.read(lambda connection: connection.execute(sql, values).fetchall())
