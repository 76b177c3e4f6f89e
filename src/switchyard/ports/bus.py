"""The bus port: the journal's events in order, page by page, for readers that keep their own place.

The journal itself is a bus (`flow/backoffice/journal_bus.py`); a consumer of a message broker can be another.
"""

from typing import Protocol

from switchyard.domain.bus import BusEvent, Place


class Bus(Protocol):
    """All events, each once and in order after a place that the reader names."""

    async def check(self, place: Place) -> None:
        """Raise HistoryMismatch unless the bus has the event at this place; JournalUnavailable if it cannot tell."""
        ...

    async def page(self, after: Place, limit: int) -> list[BusEvent]:
        """Return the next events, at most `limit`; empty where there are none yet.

        Raises HistoryMismatch where the first does not follow the place, or one does not follow the one before it.
        """
        ...

    async def lag(self, place: Place) -> int:
        """Return how many events are after the place, about."""
        ...
