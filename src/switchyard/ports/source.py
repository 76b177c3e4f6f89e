"""The source port: the events of one part of the bus, page by page, after a position that the reader keeps."""

from typing import Protocol

import msgspec

from switchyard.domain.journal.lines import BusEvent, SourcePosition


class Page(msgspec.Struct, frozen=True):
    """The next events of a source, and the position of a reader that has taken them."""

    events: tuple[BusEvent, ...]
    position: SourcePosition
    """May move without an event, where a broker has records that are none."""


class Source(Protocol):
    """Events in order after a position that the reader names; the events of one account are all in one source."""

    @property
    def name(self) -> str:
        """Names the source for ever: `journal`, or `kafka:<topic id>/<partitions>:<partition>`."""
        ...

    @property
    def start(self) -> SourcePosition:
        """The position before the first event."""
        ...

    async def check(self, position: SourcePosition) -> None:
        """Raise HistoryMismatch unless a reader may continue at this position; Unavailable if it cannot tell."""
        ...

    async def page(self, after: SourcePosition, limit: int) -> Page:
        """Return the next events, at most `limit`; none, at the same position, where there are none yet.

        The journal raises HistoryMismatch where the first does not follow the position, or one the one before it. A
        partition holds some accounts only: there, the ledger finds a gap by `BusEvent.previous_seq`.
        """
        ...

    async def lag(self, position: SourcePosition) -> int:
        """Return how many events are after the position, about."""
        ...
