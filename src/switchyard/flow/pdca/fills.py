"""The fills of a strategy out of the ledger, and whether the ledger has all of them. Reads only."""

from collections.abc import AsyncIterator

from switchyard.domain.bus import Place
from switchyard.domain.ledger.entries import LedgerEntry, parse_entry
from switchyard.ports.ledger import ENTRIES_MAX, EntryKey, Ledger
from switchyard.ports.strategy_fills import BooksState


class LedgerFills:
    """ports.strategy_fills.StrategyFills over the back office's ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def state(self) -> BooksState:
        """How far the books are; an account that has halted is a problem of all strategies, which may have used it."""
        seq = 0
        for source in await self._ledger.sources():
            if not isinstance(source.position, Place):
                return BooksState(
                    0, f"they are read from {source.source}, whose offsets cannot be compared with events"
                )
            seq = max(seq, source.position.seq)
        halted = await self._ledger.halted(1)
        return BooksState(seq, f"the account {halted[0].account_id} has halted" if halted else None)

    async def pages(self, strategy: str) -> AsyncIterator[list[LedgerEntry]]:
        """All fills of the strategy."""
        after: EntryKey | None = None
        while rows := await self._ledger.strategy_entries(strategy, after, ENTRIES_MAX):
            entries = [parse_entry(row.text) for row in rows]
            yield [entry for entry in entries if entry.type == "Fill"]
            last = entries[-1]
            after = EntryKey(last.at, last.account_id, last.number)


class NoBooks:
    """ports.strategy_fills.StrategyFills of a process whose installation keeps no books."""

    async def state(self) -> BooksState:
        """Why there is nothing to read."""
        return BooksState(0, "no process keeps them (SWITCHYARD_BACKOFFICE=false)")

    async def pages(self, _strategy: str) -> AsyncIterator[list[LedgerEntry]]:
        """Nothing."""
        return
        yield []
