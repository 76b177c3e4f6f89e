"""The market data port."""

from typing import Protocol

from switchyard.domain.facts import Quote
from switchyard.domain.ids import VenueName


class Quotes(Protocol):
    """Current bid and ask by venue and symbol."""

    def quote(self, venue: VenueName, symbol: str) -> Quote | None:
        """Return the quote if this process has it without a request."""
        ...

    async def ask(self, venue: VenueName, symbol: str) -> Quote | None:
        """Return the quote, requesting it from the venue if necessary; None if the venue has none."""
        ...
