"""P&L and closing figures of the books in PostgreSQL. Reads only."""

from datetime import date

from switchyard.adapters.backoffice.postgres.ledger import PostgresLedger
from switchyard.adapters.backoffice.rows import holding_decoder
from switchyard.domain.books.holdings import Holding, Result
from switchyard.domain.ids import AccountId
from switchyard.ports.books import Balance, ResultGroup, ResultsBy

_NAMES: dict[ResultsBy, str] = {"day": "to_char(day, 'YYYY-MM-DD')", "symbol": "symbol", "strategy": "strategy"}
RESULTS = """
SELECT {name} COLLATE "C" AS name, currency, sum(realised), sum(strategy_realised), sum(fees), sum(fills)::bigint
FROM results WHERE account_id = $1 AND day BETWEEN $2 AND $3 AND ({name} COLLATE "C", currency) > ($4, $5)
GROUP BY 1, 2 ORDER BY 1, 2 LIMIT $6
"""
OPEN_POSITIONS = """
SELECT body FROM positions WHERE account_id = $1 AND (strategy = '*') <> $2 AND NOT is_flat
ORDER BY strategy, symbol, currency LIMIT $3
"""
CLOSING_POSITIONS = """
SELECT body FROM (
    SELECT DISTINCT ON (symbol, currency) symbol, currency, body FROM day_positions
    WHERE account_id = $1 AND (symbol, currency) > ($2, $3) AND day <= $4 ORDER BY symbol, currency, day DESC
) AS closing WHERE body::jsonb ->> 'qty' <> '0' ORDER BY symbol, currency LIMIT $5
"""
CLOSING_BALANCES = """
SELECT DISTINCT ON (unit, account) account, unit, amount FROM day_balances
WHERE account_id = $1 AND account NOT IN ('position', 'position_clearing') AND day <= $2 AND unit IN (
    SELECT DISTINCT unit FROM day_balances
    WHERE account_id = $1 AND unit > $3 AND day <= $2 AND account NOT IN ('position', 'position_clearing')
    ORDER BY unit LIMIT $4
)
ORDER BY unit, account, day DESC
"""


class PostgresLedgerReports:
    """ports.books.LedgerReports of one schema."""

    def __init__(self, ledger: PostgresLedger) -> None:
        self._ledger = ledger

    async def results(
        self, account: AccountId, by: ResultsBy, days: tuple[date, date], after: tuple[str, str], limit: int
    ) -> list[ResultGroup]:
        """Results by day, symbol or strategy, and currency."""
        rows = await self._ledger.rows(RESULTS.format(name=_NAMES[by]), account, *days, *after, limit)
        return [
            ResultGroup(name, currency, Result(realised=realised, strategy_realised=strategy, fees=fees, fills=fills))
            for name, currency, realised, strategy, fees, fills in rows
        ]

    async def closing_balances(self, account: AccountId, day: date, after_unit: str, limit: int) -> list[Balance]:
        """The money accounts of the next currencies at the end of a day."""
        return [Balance(*row) for row in await self._ledger.rows(CLOSING_BALANCES, account, day, after_unit, limit)]

    async def closing_holdings(
        self, account: AccountId, day: date, after: tuple[str, str], limit: int
    ) -> list[Holding]:
        """The positions at the end of a day."""
        rows = await self._ledger.rows(CLOSING_POSITIONS, account, *after, day, limit)
        return [holding_decoder.decode(row[0]) for row in rows]

    async def open_holdings(self, account: AccountId, strategies: bool, limit: int) -> list[Holding]:
        """The positions that are not flat now."""
        rows = await self._ledger.rows(OPEN_POSITIONS, account, strategies, limit)
        return [holding_decoder.decode(row[0]) for row in rows]
