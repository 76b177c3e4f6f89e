"""Market quotes that a process can get."""

from typing import Protocol

from switchyard.domain.events import Quote
from switchyard.domain.ids import VenueName


class Quotes(Protocol):
    """What the market is, as far as this process knows it."""

    def quote(self, venue: VenueName, symbol: str) -> Quote | None:
        """The venue's bid and ask right now, or none."""
        ...

    async def ask(self, venue: VenueName, symbol: str) -> Quote | None:
        """The same, asked for where it is not known; none where the venue does not tell."""
        ...
