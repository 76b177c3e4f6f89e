"""The port of a market that must be asked over a network."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from switchyard.ports.quote_source import TimedQuote


class QuotePage(msgspec.Struct, frozen=True):
    """The answer to one request for quotes; a symbol in neither mapping has no market."""

    quotes: Mapping[str, TimedQuote]
    unusable: Mapping[str, str]
    """For each symbol whose quote cannot be used, the reason, for people."""


class QuoteFeed(Protocol):
    """Asks a venue for its market."""

    async def read(self, symbols: Sequence[str]) -> QuotePage:
        """Ask for these symbols with one request; raises VenueUnavailable if there is no readable answer."""
        ...
