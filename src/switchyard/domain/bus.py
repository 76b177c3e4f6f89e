"""Events as readers of the bus get them: each with its place, so that a gap or another history is noticed.

Pure. A place names an event by number and hash; the hash covers the whole history up to it.
"""

import msgspec

from switchyard.domain.chain import GENESIS, link
from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.events import JournalEvent

_EPOCH_START = len('{"epoch":')


class Place(msgspec.Struct, frozen=True, tag="place"):
    """The position of a reader of the journal: the last event that it has taken; number 0 before the first."""

    epoch: int = 1
    seq: int = 0
    hash: str = GENESIS


class Offset(msgspec.Struct, frozen=True, tag="offset"):
    """The position of a reader of a partition: the number of the next message to read."""

    next: int = 0


SourcePosition = Place | Offset
"""How far a source was read. Two positions of one source are equal or different; nothing else is asked of them."""


class BusEvent(msgspec.Struct, frozen=True):
    """One event and the epoch that it belongs to."""

    epoch: int
    event: JournalEvent
    previous_seq: int | None = None
    """The number of the account's event before this one, 0 if it is the account's first.

    None from the journal itself, where the whole sequence is proven by number and hash.
    """
    traceparent: str | None = None
    """The W3C trace context of the order's request, beside the event: no hash covers it, no behaviour depends on it."""

    @property
    def place(self) -> Place:
        """The place of a reader that has taken this event."""
        return Place(self.epoch, self.event.seq, self.event.hash)


def bus_event(event: JournalEvent) -> BusEvent:
    """The event with the epoch that its text begins with."""
    return BusEvent(int(event.text[_EPOCH_START : event.text.index(",")]), event)


def check_follows(place: Place, next_event: BusEvent) -> None:
    """Raise HistoryMismatch unless the event is the next one after the place."""
    seq, event = place.seq, next_event.event
    # A new epoch starts at a higher number; every other gap is a lost event.
    is_next = event.seq == seq + 1 or (next_event.epoch > place.epoch and event.seq > seq)
    if not is_next:
        raise HistoryMismatch(f"event {event.seq} came after event {seq}: events are missing between them")
    if link(place.hash, event.text) != event.hash:
        raise HistoryMismatch(
            f"event {event.seq} does not follow event {seq} with hash {place.hash}: it is of another history"
        )
