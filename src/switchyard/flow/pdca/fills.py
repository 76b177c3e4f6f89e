"""The fills of an account's strategy out of the ledger, and whether the ledger has all of them. Reads only."""

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import datetime
from typing import Final, Protocol

import msgspec

from switchyard.domain.books.entries import Adoption, LedgerEntry, parse_entry
from switchyard.domain.ids import AccountId
from switchyard.ports.books import ENTRIES_MAX, EntryKey, LedgerLookup, StoredEntry
from switchyard.ports.strategies import BooksState

# Of the types of entries, those that the results of a strategy follow from.
_MOVING: Final = frozenset({"Fill", "OpeningPosition", "Fee"})


class _Kind(msgspec.Struct, rename="camel"):
    """What decides whether an entry counts."""

    type: str
    entry_id: str
    reverses: str | None = None


class _Place(msgspec.Struct, rename="camel"):
    """Where an entry is among those of its account."""

    at: datetime
    number: int


_kind = msgspec.json.Decoder(_Kind)
_place = msgspec.json.Decoder(_Place)


class FollowingLedger(Protocol):
    """What is read of a ledger."""

    async def strategy_entries(
        self, account: AccountId, strategy: str, after: EntryKey | None, limit: int
    ) -> list[StoredEntry]:
        """Return the next entries of an account's strategy, by time and number."""
        ...

    async def adoptions(self) -> list[Adoption]:
        """Return the epochs that people had the books follow."""
        ...


class LedgerFills:
    """ports.strategy_fills.StrategyFills over the back office's ledger."""

    def __init__(self, ledger: FollowingLedger, lookup: LedgerLookup) -> None:
        self._ledger = ledger
        self._lookup = lookup

    async def problem(self) -> str | None:
        """None: there are books."""
        return None

    async def state(self, account: AccountId) -> BooksState:
        """How far the books are with an account, whichever bus they read it from."""
        found = await self._lookup.find_account(account)
        if found is None:
            return BooksState()
        adopted = max((each.epoch for each in await self._ledger.adoptions()), default=0)
        return BooksState(max(found.epoch, adopted), found.seq, found.halted)

    async def pages(self, account: AccountId, strategy: str) -> AsyncIterator[list[LedgerEntry]]:
        """All fills of the strategy; one that was reversed counts as if it had never been."""
        # A reversal may come long after its fill, so the entries are looked through for them first.
        reversed_ids = {
            kind.reverses
            async for rows in self._rows(account, strategy)
            for row in rows
            if '"reverses"' in row.text and (kind := _kind.decode(row.text)).reverses is not None
        }
        async for rows in self._rows(account, strategy):
            # In a thread: a page takes tens of milliseconds, for which no order may wait.
            yield await asyncio.to_thread(_moving, rows, reversed_ids)

    async def _rows(self, account: AccountId, strategy: str) -> AsyncIterator[list[StoredEntry]]:
        after: EntryKey | None = None
        while rows := await self._ledger.strategy_entries(account, strategy, after, ENTRIES_MAX):
            yield rows
            last = _place.decode(rows[-1].text)
            after = EntryKey(last.at, last.number)


def _moving(rows: list[StoredEntry], reversed_ids: Collection[str | None]) -> list[LedgerEntry]:
    """The entries that results follow from."""
    kinds = [(row, _kind.decode(row.text)) for row in rows]
    return [parse_entry(row.text) for row, kind in kinds if kind.type in _MOVING and kind.entry_id not in reversed_ids]


class NoBooks:
    """ports.strategy_fills.StrategyFills of a process whose installation keeps no books."""

    async def problem(self) -> str | None:
        """Why there is nothing to read."""
        return "no process keeps them (SWITCHYARD_BACKOFFICE=false)"

    async def state(self, _account: AccountId) -> BooksState:
        """Nothing was read."""
        return BooksState()

    async def pages(self, _account: AccountId, _strategy: str) -> AsyncIterator[list[LedgerEntry]]:
        """Nothing."""
        return
        yield []
