"""Breaks on either engine: the reads of their store. How versions are written is each engine's own."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from switchyard.domain.reconcile.breaks import Break, BreakClass, BreakState
from switchyard.ports.books import BREAKS_MAX, BreakFilter

# The states are a list; the index of current breaks serves every list without 'closed'.
_PAGE = """
SELECT body FROM {breaks} WHERE break_id > $1 AND (CAST($2 AS text) IS NULL OR account_id = $2)
AND state {any_of} {closed} ORDER BY break_id LIMIT $4
"""
_decode = msgspec.json.Decoder(Break).decode


class SqlBreaks(ABC):
    """ports.books.BreakStore."""

    breaks: ClassVar[str] = "breaks"
    break_versions: ClassVar[str] = "break_versions"
    any_of: ClassVar[str]
    """The condition that a column is in a list, which is the parameter `{}`."""

    async def page(self, wanted: BreakFilter) -> list[Break]:
        """Breaks sorted by id."""
        closed = "" if "closed" in wanted.states else "AND state <> 'closed'"
        sql = _PAGE.format(breaks=self.breaks, any_of=self.any_of.format("$3"), closed=closed)
        states, limit = list(wanted.states), min(wanted.limit, BREAKS_MAX)
        return await self._breaks(sql, wanted.after, wanted.account_id, states, limit)

    async def find(self, break_ids: Sequence[str]) -> dict[str, Break]:
        """Those that exist."""
        where = f"break_id {self.any_of.format('$1')}"
        found = await self._breaks(f"SELECT body FROM {self.breaks} WHERE {where}", list(break_ids))
        return {one.break_id: one for one in found}

    async def history(self, break_id: str, limit: int) -> list[Break]:
        """The newest versions, the newest first."""
        sql = f"SELECT body FROM {self.break_versions} WHERE break_id = $1 ORDER BY version DESC LIMIT $2"
        return await self._breaks(sql, break_id, min(limit, BREAKS_MAX))

    async def counts(self) -> Mapping[tuple[BreakClass, BreakState], int]:
        """How many there are by class and state."""
        rows = await self._rows(f"SELECT class, state, count(*) FROM {self.breaks} GROUP BY class, state")
        return {(class_, state): count for class_, state, count in rows}

    @abstractmethod
    async def close(self) -> None:
        """Finish the write in progress and disconnect."""

    @abstractmethod
    async def save(self, breaks: Sequence[Break]) -> int:
        """Write each in its newest version, in one transaction; returns how many were written."""

    async def _breaks(self, sql: str, *values: Any) -> list[Break]:
        return [_decode(body) for (body,) in await self._rows(sql, *values)]

    @abstractmethod
    async def _rows(self, sql: str, *values: Any) -> Sequence[Sequence[Any]]:
        """Run a query."""
