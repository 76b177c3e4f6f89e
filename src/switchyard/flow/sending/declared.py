"""Whether a venue's lookups settle its doubts, as the workers declare it: kept in the database, as a cursor.

A command that runs in a shell without the venue's settings must judge by those of the workers.
"""

from switchyard.domain.changes import Change, Cursor
from switchyard.domain.ids import VenueName
from switchyard.flow.decide import Commit
from switchyard.ports.journal import Journal


async def declare(journal: Journal, commit: Commit, venue: VenueName, *, lookup_decides: bool) -> None:
    """Record what this process's settings say; called before the first send to the venue."""
    if await declared(journal, venue) != lookup_decides:
        await commit(Change(cursors=(declaration(venue, lookup_decides=lookup_decides),)))


async def declared(journal: Journal, venue: VenueName) -> bool | None:
    """What the worker that started last declared; none if no worker did."""
    mark = await journal.cursor(_name(venue))
    return None if mark is None else bool(mark.seq)


def declaration(venue: VenueName, *, lookup_decides: bool) -> Cursor:
    """The cursor that keeps the declaration: its number is 1 or 0."""
    return Cursor(name=_name(venue), epoch=0, seq=int(lookup_decides), hash="")


def _name(venue: VenueName) -> str:
    return f"declared:{venue}"
