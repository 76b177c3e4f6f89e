"""The port of one venue's market, known without a request."""

from typing import Protocol

import msgspec

from switchyard.domain.journal.facts import Quote


class TimedQuote(msgspec.Struct, frozen=True):
    """A quote, and when it was the market on our monotonic clock: the difference to now is its age."""

    quote: Quote
    as_of: float
    """In seconds, as `Clock.monotonic`; never later than the market was really like this."""


class QuoteSource(Protocol):
    """Bid and ask of one venue's symbols; it never raises, and whether a quote is stale is its reader's decision."""

    def current(self, symbol: str) -> TimedQuote | None:
        """Return the newest quote that this process has; called for every order, so it does no I/O."""
        ...

    async def ask(self, symbol: str) -> TimedQuote | None:
        """Return the same; where the symbol was not asked for yet, wait briefly for its first quote."""
        ...
