"""What the workers declare of a venue: its class, on which they must agree, and whether its lookups settle doubts.

The latter is kept in the database, as a cursor: a command that runs in a shell without the venue's settings must judge
by those of the workers.
"""

from datetime import timedelta

from switchyard.domain.changes import Change, Cursor
from switchyard.domain.ids import VenueName
from switchyard.flow.decide import Commit
from switchyard.ports.journal import Journal
from switchyard.ports.venue import Capabilities


async def declare(journal: Journal, commit: Commit, venue: VenueName, *, lookup_decides: bool) -> None:
    """Record what this process's settings say; called before the first send to the venue."""
    if await declared(journal, venue) != lookup_decides:
        await commit(Change(cursors=(declaration(venue, lookup_decides=lookup_decides),)))


async def declared(journal: Journal, venue: VenueName) -> bool | None:
    """What the workers declared; none if no worker did."""
    mark = await journal.cursor(_name(venue))
    return None if mark is None else bool(mark.seq)


def declaration(venue: VenueName, *, lookup_decides: bool) -> Cursor:
    """The cursor that keeps the declaration: its number is 1 or 0."""
    return Cursor(name=_name(venue), epoch=0, seq=int(lookup_decides), hash="")


def class_text(capabilities: Capabilities) -> str:
    """The capabilities that decide what becomes of an order in doubt and of a report, in the words of the settings."""
    told = {
        "dedupe": capabilities.dedupe,
        "dedupe_ttl_sec": _seconds(capabilities.dedupe_ttl),
        "lookup": capabilities.lookup,
        "window_sec": _seconds(capabilities.acceptance_window),
        "hop_hold_sec": _seconds(capabilities.hop_hold),
        "request_expiry": str(capabilities.request_expiry).lower(),
        "exec_id_scope": capabilities.execution_ids,
        "amend": capabilities.amend,
    }
    return " ".join(f"{name}={value}" for name, value in told.items())


def _seconds(time: timedelta | None) -> str:
    return "unset" if time is None else f"{time.total_seconds():g}"


def _name(venue: VenueName) -> str:
    return f"declared:{venue}"
