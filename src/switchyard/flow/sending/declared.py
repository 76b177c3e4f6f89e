"""How doubts at a venue are settled, as the workers declare it: kept in the database, as a cursor.

A command, or a gateway without a worker, must judge by what the process says that decides, not by its own settings.
"""

import msgspec

from switchyard.domain.changes import Change, Cursor
from switchyard.domain.ids import VenueName
from switchyard.flow.decide import Commit
from switchyard.ports.journal import Journal
from switchyard.ports.venue import Lookup


class Settling(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker does about a row in doubt at a venue."""

    lookup: Lookup
    absent_after_seconds: float | None
    """How long the venue must have been answering, since the sender gave up, before absence is proven; None: never."""


class Decider(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that settles the doubts at a venue, as other processes see it."""

    settling: Settling | None = None
    """What the one that started last declared; None if none has opened the venue on this database."""
    is_running: bool = False
    """Whether a process that has this venue is known to run now."""


async def declare(
    journal: Journal, commit: Commit, venue: VenueName, settling: Settling, *, lookup_decides: bool
) -> None:
    """Record what this process's settings say; called before the first send to the venue."""
    cursor = declaration(venue, settling, lookup_decides=lookup_decides)
    if await journal.cursor(cursor.name) != cursor:
        await commit(Change(cursors=(cursor,)))


async def declared(journal: Journal, venue: VenueName) -> bool | None:
    """Whether lookups settle all doubts, as the worker says that started last; None if no worker did."""
    mark = await journal.cursor(declared_name(venue))
    return None if mark is None else bool(mark.seq)


def declaration(venue: VenueName, settling: Settling, *, lookup_decides: bool) -> Cursor:
    """The cursor that keeps the declaration: its number is 1 or 0, its text is how doubts are settled."""
    text = msgspec.json.encode(settling).decode()
    return Cursor(name=declared_name(venue), epoch=0, seq=int(lookup_decides), hash=text)


def settling_in(text: str | None) -> Settling | None:
    """How doubts are settled, out of the text of a declaration."""
    return msgspec.json.decode(text, type=Settling) if text else None


def declared_name(venue: VenueName) -> str:
    """The name of the cursor."""
    return f"declared:{venue}"
