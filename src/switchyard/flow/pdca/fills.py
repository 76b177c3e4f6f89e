"""The fills of a strategy out of the ledger, and whether the ledger has all of them. Reads only."""

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import datetime
from typing import Final

import msgspec

from switchyard.domain.bus import Place
from switchyard.domain.ids import AccountId
from switchyard.domain.ledger.entries import LedgerEntry, parse_entry
from switchyard.ports.ledger import ENTRIES_MAX, EntryKey, Ledger, StoredEntry
from switchyard.ports.strategy_fills import BooksState

# Of the types of entries, those that the results of a strategy follow from.
_MOVING: Final = frozenset({"Fill", "OpeningPosition", "Fee"})


class _Kind(msgspec.Struct, rename="camel"):
    """What decides whether an entry counts."""

    type: str
    entry_id: str
    reverses: str | None = None


class _Place(msgspec.Struct, rename="camel"):
    """Where an entry is among those of all accounts."""

    at: datetime
    account_id: AccountId
    number: int


_kind = msgspec.json.Decoder(_Kind)
_place = msgspec.json.Decoder(_Place)


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
        """All fills of the strategy; one that was reversed counts as if it had never been."""
        # A reversal may come long after its fill, so the entries are looked through for them first.
        reversed_ids = {
            kind.reverses
            async for rows in self._rows(strategy)
            for row in rows
            if '"reverses"' in row.text and (kind := _kind.decode(row.text)).reverses is not None
        }
        async for rows in self._rows(strategy):
            # In a thread: a page takes tens of milliseconds, for which no order may wait.
            yield await asyncio.to_thread(_moving, rows, reversed_ids)

    async def _rows(self, strategy: str) -> AsyncIterator[list[StoredEntry]]:
        after: EntryKey | None = None
        while rows := await self._ledger.strategy_entries(strategy, after, ENTRIES_MAX):
            yield rows
            last = _place.decode(rows[-1].text)
            after = EntryKey(last.at, last.account_id, last.number)


def _moving(rows: list[StoredEntry], reversed_ids: Collection[str | None]) -> list[LedgerEntry]:
    """The entries that results follow from."""
    kinds = [(row, _kind.decode(row.text)) for row in rows]
    return [parse_entry(row.text) for row, kind in kinds if kind.type in _MOVING and kind.entry_id not in reversed_ids]


class NoBooks:
    """ports.strategy_fills.StrategyFills of a process whose installation keeps no books."""

    async def state(self) -> BooksState:
        """Why there is nothing to read."""
        return BooksState(0, "no process keeps them (SWITCHYARD_BACKOFFICE=false)")

    async def pages(self, _strategy: str) -> AsyncIterator[list[LedgerEntry]]:
        """Nothing."""
        return
        yield []
