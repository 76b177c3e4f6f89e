"""Quotes: of a venue's feed, and as the flow asks for them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from switchyard.domain.ids import VenueName
from switchyard.domain.journal.facts import Quote


class Quotes(Protocol):
    """Current bid and ask by venue and symbol; a stale quote is none, and no method raises."""

    def quote(self, venue: VenueName, symbol: str) -> Quote | None:
        """Return the quote that this process has; does not wait."""

    async def ask(self, venue: VenueName, symbol: str) -> Quote | None:
        """Return the same; where the symbol was not asked for yet, wait briefly for its first quote."""


class QuoteLookup(Protocol):
    """Current bid and ask by venue and symbol; a stale quote is None."""

    async def look_up(self, wanted: Sequence[tuple[VenueName, str]], *, waits: bool = False) -> Sequence[Quote | None]:
        """Return a quote for each of these; `waits`: briefly, for the first one of a symbol that is not polled yet."""


class TimedQuote(msgspec.Struct, frozen=True):
    """A quote, and when it was the market on our monotonic clock: the difference to now is its age."""

    quote: Quote
    as_of: float
    """In seconds, as `Clock.monotonic`; never later than the market was really like this."""


class QuoteSource(Protocol):
    """Bid and ask of one venue's symbols; it never raises, and whether a quote is stale is its reader's decision."""

    def current(self, symbol: str) -> TimedQuote | None:
        """Return the newest quote that this process has; called for every order, so it does no I/O."""

    async def ask(self, symbol: str) -> TimedQuote | None:
        """Return the same; where the symbol was not asked for yet, wait briefly for its first quote."""


class QuotePage(msgspec.Struct, frozen=True):
    """The answer to one request for quotes; a symbol in neither mapping has no market."""

    quotes: Mapping[str, TimedQuote]
    unusable: Mapping[str, str]
    """For each symbol whose quote cannot be used, the reason, for people."""


class QuoteFeed(Protocol):
    """Asks a venue for its market."""

    async def read(self, symbols: Sequence[str]) -> QuotePage:
        """Ask for these symbols with one request; raises VenueUnavailable if there is no readable answer."""
