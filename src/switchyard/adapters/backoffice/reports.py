"""P&L and closing figures of the books' SQLite file. Reads only."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from itertools import groupby, islice
from typing import Any

import apsw

from switchyard.adapters.backoffice import schema
from switchyard.adapters.backoffice.ledger import SqliteLedger
from switchyard.adapters.backoffice.rows import holding_decoder
from switchyard.domain.books.holdings import Holding, Result
from switchyard.domain.ids import AccountId
from switchyard.ports.books import Balance, ResultGroup, ResultsBy


class SqliteLedgerReports:
    """ports.books.LedgerReports of one file."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self._ledger = ledger

    async def results(
        self, account: AccountId, by: ResultsBy, days: tuple[date, date], after: tuple[str, str], limit: int
    ) -> list[ResultGroup]:
        """Results by day, symbol or strategy, and currency."""
        values = account, days[0].isoformat(), days[1].isoformat(), *after

        def work(connection: apsw.Connection) -> list[ResultGroup]:
            # Summed here, because the file's amounts are texts; row by row, so that a long range needs no memory.
            rows = connection.execute(schema.RESULTS.format(name=by), values)
            groups = groupby(rows, key=lambda row: (str(row[0]), str(row[1])))
            return [
                ResultGroup(name, currency, sum((_result(row[2:]) for row in group), Result()))
                for (name, currency), group in islice(groups, limit)
            ]

        return await self._ledger.read(work)

    async def closing_balances(self, account: AccountId, day: date, after_unit: str, limit: int) -> list[Balance]:
        """The money accounts of the next currencies at the end of a day."""
        rows = await self._rows(schema.CLOSING_BALANCES, (account, day.isoformat(), after_unit, limit))
        return [Balance(name, unit, Decimal(amount)) for name, unit, amount, _ in rows]

    async def closing_holdings(
        self, account: AccountId, day: date, after: tuple[str, str], limit: int
    ) -> list[Holding]:
        """The positions at the end of a day."""
        rows = await self._rows(schema.CLOSING_POSITIONS, (account, *after, day.isoformat(), limit))
        return [holding_decoder.decode(body) for body, _ in rows]

    async def open_holdings(self, account: AccountId, strategies: bool, limit: int) -> list[Holding]:
        """The positions that are not flat now."""
        rows = await self._rows(schema.OPEN_POSITIONS, (account, strategies, limit))
        return [holding_decoder.decode(body) for (body,) in rows]

    async def _rows(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return await self._ledger.read(lambda connection: connection.execute(sql, values).fetchall())


def _result(columns: Sequence[Any]) -> Result:
    realised, strategy_realised, fees, fills = columns
    return Result(
        realised=Decimal(realised), strategy_realised=Decimal(strategy_realised), fees=Decimal(fees), fills=fills
    )
