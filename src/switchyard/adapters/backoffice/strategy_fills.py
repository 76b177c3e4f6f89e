"""The fills of a strategy from a ledger file, page by page. Reads only."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from switchyard.adapters.backoffice.ledger import SqliteLedger
from switchyard.domain.ledger.entries import LedgerEntry, parse_entry
from switchyard.ports.strategy_fills import BooksState

PAGE = 1_000
_ENTRIES = """
SELECT number, text FROM entries
WHERE number > ?1 AND type = 'Fill' AND json_extract(text, '$.strategy') = ?2
ORDER BY number LIMIT ?3
"""


class SqliteStrategyFills:
    """ports.strategy_fills.StrategyFills of one file; `problem` tells why its reader has stopped."""

    def __init__(self, ledger: SqliteLedger, problem: Callable[[], str | None]) -> None:
        self._ledger = ledger
        self._problem = problem

    async def state(self) -> BooksState:
        """How far the books are."""
        return BooksState((await self._ledger.state()).place.seq, self._problem())

    async def pages(self, strategy: str) -> AsyncIterator[list[LedgerEntry]]:
        """All fills of the strategy."""
        after = 0
        while rows := await self._rows(after, strategy):
            yield [parse_entry(text) for _, text in rows]
            after = rows[-1][0]

    async def _rows(self, after: int, strategy: str) -> list[tuple[int, str]]:
        values = after, strategy, PAGE
        rows: list[Any] = await self._ledger.read(lambda connection: connection.execute(_ENTRIES, values).fetchall())
        return rows
