"""What the workers declare of a venue: its class, on which they must agree, and how its doubts are settled.

The latter is kept in the database, as a cursor: a command, or a gateway without a worker, must judge by what the
process says that decides, not by its own settings.
"""

from datetime import timedelta

import msgspec

from switchyard.domain.ids import VenueName
from switchyard.domain.journal.changes import Change, Cursor
from switchyard.flow.commit.sequencer import Commit
from switchyard.ports.journal import Journal
from switchyard.ports.venue import Capabilities, Lookup


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
    """Whether lookups settle all doubts, as the workers declared; None if no worker did."""
    mark = await journal.cursor(declared_name(venue))
    return None if mark is None else bool(mark.seq)


def declaration(venue: VenueName, settling: Settling, *, lookup_decides: bool) -> Cursor:
    """The cursor that keeps the declaration: its number is 1 or 0, its text is how doubts are settled."""
    text = msgspec.json.encode(settling).decode()
    return Cursor(name=declared_name(venue), epoch=0, seq=int(lookup_decides), hash=text)


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


def settling_in(text: str | None) -> Settling | None:
    """How doubts are settled, out of the text of a declaration."""
    return msgspec.json.decode(text, type=Settling) if text else None


def _seconds(time: timedelta | None) -> str:
    return "unset" if time is None else f"{time.total_seconds():g}"


def declared_name(venue: VenueName) -> str:
    """The name of the cursor."""
    return f"declared:{venue}"
