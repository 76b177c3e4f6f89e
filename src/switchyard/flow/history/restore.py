"""Declares that the database is a restored or rebuilt one, or that it is the newest: opens a new epoch.

Rows that are unfinished in a restored database may have been sent after its backup was made, so they are marked
uncertain. Writes the journal; sends nothing.

The steps are separate commits. The first one opens the epoch and sets the marker `restoring`: from then on no process
starts, and those that run end at their next append, because the epoch is another one. The last one removes the marker.
After a crash in between the same call continues.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import msgspec

from switchyard.domain import decisions
from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.ids import OrderId, VenueName, ulid_milliseconds
from switchyard.domain.journal.changes import Change, Committed, Cursor, Outcome
from switchyard.domain.journal.events import SYSTEM_ACCOUNT, event
from switchyard.domain.journal.facts import EpochCause, EpochFact
from switchyard.flow.commit.sequencer import Commit
from switchyard.ports.clock import Clock, Randomness, fresh_ulid
from switchyard.ports.journal import RESTORED, Epochs, Head, Journal
from switchyard.ports.outbox import Due, OutboxQueries

PAGE = 500
# Selects rows in backoff too: their next attempt is in the future.
FAR_AHEAD = datetime(9999, 1, 1, tzinfo=UTC)
# The cursor that is the marker: its hash is the cause of the epoch while rows are being marked, else empty.
RESTORING = "restoring"

Append = Callable[[Sequence[Change]], Awaitable[list[Outcome]]]
"""Commits several changes as one group."""


class Restored(msgspec.Struct, frozen=True):
    """The result of a declaration."""

    epoch: int
    rows: int
    """Rows that this call marked uncertain."""
    continued: bool
    """Whether an earlier call was interrupted and this one finished it."""
    kills: int = 0
    """Kills that are active in the backup; later ones are not in it."""


async def declare_restored(
    journal: Journal,
    epochs: Epochs,
    queries: OutboxQueries,
    append: Append,
    clock: Clock,
    randomness: Randomness,
    above: Head,
    finishing: Callable[[int], None],
) -> Restored:
    """Open a new epoch above `above` and mark every unfinished row uncertain.

    Nothing is sent. After the next start the resolver looks the orders up at their venues. `finishing` is called with
    the epoch before the marker is removed, to move the files of the replaced database aside; it may be called again.
    """
    marker = await journal.cursor(RESTORING)
    cause: EpochCause = "rebuilt" if marker is not None and marker.hash == "rebuilt" else "restored"
    head = await journal.head(0)
    # A rebuild sets the marker without a number: its epoch is still to be opened.
    continued = marker is not None and marker.hash != "" and marker.seq > 0
    if not continued:
        marker = Cursor(name=RESTORING, epoch=0, seq=0, hash=cause)
        head = await epochs.open_epoch(above.epoch, above.seq, clock.now(), marker)
    if head.seq < (await journal.epochs(0))[-1].first_seq:
        await append([await _epoch_opened(epochs, cause)])
    rows = await _mark_all_uncertain(queries, append, clock)
    finishing(head.epoch)
    done = Cursor(name=RESTORING, epoch=0, seq=0, hash="")
    mark = Cursor(name=RESTORED, epoch=head.epoch, seq=0, hash=fresh_ulid(clock, randomness))
    await append([Change(cursors=(done, mark))])
    return Restored(head.epoch, rows, continued)


async def declare_newest(
    journal: Journal, epochs: Epochs, append: Append, clock: Clock, above: Head, by: str, reason: str
) -> int:
    """Record that this database is the newest, whatever its heads say; returns the epoch that this opens.

    A new epoch, because the numbers above its head may have been published already. No row becomes uncertain.
    """
    await check_not_restoring(journal)
    head = await epochs.open_epoch(above.epoch, above.seq, clock.now())
    await append([await _epoch_opened(epochs, "newest", by, reason)])
    return head.epoch


def rebuilding_marker() -> Cursor:
    """The marker of a rebuilt database, whose new epoch is still to be opened."""
    return Cursor(name=RESTORING, epoch=0, seq=0, hash="rebuilt")


async def check_not_restoring(journal: Journal) -> None:
    """Raise HistoryMismatch while the marker is there: rows that may have been sent are not uncertain yet."""
    marker = await journal.cursor(RESTORING)
    if marker is not None and marker.hash:
        raise HistoryMismatch(
            f"this database was {marker.hash}, and its unfinished orders are not all marked uncertain: run "
            "`switchyard db restored` to finish that, then start again"
        )


async def incarnation_of(journal: Journal) -> str:
    """Identifies this database among all that were restored from its backups."""
    epoch = (await journal.head(0)).epoch
    restored = await journal.cursor(RESTORED)
    return f"epoch {epoch}" if restored is None else f"epoch {epoch}, restored {restored.hash}"


async def restored_at(journal: Journal) -> datetime | None:
    """When the database was last declared restored or rebuilt; none if it never was."""
    mark = await journal.cursor(RESTORED)
    return None if mark is None else datetime.fromtimestamp(ulid_milliseconds(mark.hash) / 1000, UTC)


async def restored_seq(journal: Journal) -> int | None:
    """The first number of the journal after the last restore; none if it never was restored."""
    mark = await journal.cursor(RESTORED)
    if mark is None:
        return None
    return min(epoch.first_seq for epoch in await journal.epochs(0) if epoch.epoch >= mark.epoch)


async def was_read(journal: Journal, venue: VenueName) -> bool:
    """Whether the venue was read completely since the last restore; true if there was none.

    Until then, an order that was never sent from here may have been executed by the lost history.
    """
    if await journal.cursor(RESTORED) is None:
        return True
    mark = await journal.cursor(_read_mark(venue))
    return mark is not None and mark.epoch == (await journal.head(0)).epoch


async def mark_read(journal: Journal, commit: Commit, venue: VenueName) -> None:
    """Record that the venue was read completely."""
    if not await was_read(journal, venue):
        epoch = (await journal.head(0)).epoch
        await commit(Change(cursors=(Cursor(name=_read_mark(venue), epoch=epoch, seq=0, hash=""),)))


def _read_mark(venue: VenueName) -> str:
    return f"read:{venue}"


async def _epoch_opened(epochs: Epochs, cause: EpochCause, by: str | None = None, reason: str | None = None) -> Change:
    installation = await epochs.installation()
    fact = EpochFact(cause=cause, installation=installation.id, tag=installation.tag, by=by, reason=reason)
    return Change(events=(event("EpochOpened", SYSTEM_ACCOUNT, None, fact),))


async def _mark_all_uncertain(queries: OutboxQueries, append: Append, clock: Clock) -> int:
    count = 0
    while rows := [*await queries.due(FAR_AHEAD, PAGE), *await queries.unsettled("sending", PAGE)]:
        # One row per order: two changes of a group must not write the same order. The others follow with the next page.
        by_order: dict[OrderId, Due] = {due.row.order_id: due for due in reversed(rows)}
        changes = [
            decisions.record_doubt(due.state, due.row, "RESTORED", None, clock.now()) for due in by_order.values()
        ]
        outcomes = await append(changes)
        count += sum(isinstance(outcome, Committed) for outcome in outcomes)
    return count
