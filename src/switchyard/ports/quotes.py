"""The market data port."""

from collections.abc import Sequence
from typing import Protocol

from switchyard.domain.ids import VenueName
from switchyard.domain.journal.facts import Quote


class Quotes(Protocol):
    """Current bid and ask by venue and symbol; a stale quote is none, and no method raises."""

    def quote(self, venue: VenueName, symbol: str) -> Quote | None:
        """Return the quote that this process has; does not wait."""
        ...

    async def ask(self, venue: VenueName, symbol: str) -> Quote | None:
        """Return the same; where the symbol was not asked for yet, wait briefly for its first quote."""
        ...


class QuoteLookup(Protocol):
    """Current bid and ask by venue and symbol; a stale quote is None."""

    async def look_up(self, wanted: Sequence[tuple[VenueName, str]], *, waits: bool = False) -> Sequence[Quote | None]:
        """Return a quote for each of these; `waits`: briefly, for the first one of a symbol that is not polled yet."""
        ...
