"""Declares that an older backup was restored: opens a new epoch and marks every unfinished outbox row uncertain.

Rows that are unfinished in the backup may have been sent after it was made. Writes the journal; sends nothing.
"""

from datetime import UTC, datetime

from switchyard.domain import decisions
from switchyard.domain.changes import Change, Committed, Cursor
from switchyard.flow.decide import Commit
from switchyard.ports.clock import Clock
from switchyard.ports.epochs import Epochs
from switchyard.ports.journal import Journal
from switchyard.ports.outbox import Due, OutboxQueries
from switchyard.ports.randomness import Randomness, fresh_ulid

PAGE = 500
# Selects rows in backoff too: their next attempt is in the future.
FAR_AHEAD = datetime(9999, 1, 1, tzinfo=UTC)
# The cursor whose hash identifies a restore: the same backup restored twice has the same epoch both times.
RESTORED = "restored"


async def declare_restored(
    epochs: Epochs, queries: OutboxQueries, commit: Commit, clock: Clock, randomness: Randomness
) -> tuple[int, int]:
    """Open a new epoch and mark every unfinished row uncertain; returns the epoch and the number of rows.

    Nothing is sent. After the next start the resolver looks the orders up at their venues.
    """
    # Before the epoch: after a crash in between, a new mark without a new epoch only invalidates caches.
    await commit(Change(cursors=(Cursor(name=RESTORED, epoch=0, seq=0, hash=fresh_ulid(clock, randomness)),)))
    epoch = await epochs.open_epoch()
    count = 0
    while rows := [*await queries.due(FAR_AHEAD, PAGE), *await queries.unsettled("sending", PAGE)]:
        for due in rows:
            count += await _mark_uncertain(due, commit, clock)
    return epoch, count


async def incarnation_of(journal: Journal) -> str:
    """Identifies this database among all that were restored from its backups."""
    epoch = (await journal.head(0)).epoch
    restored = await journal.cursor(RESTORED)
    return f"epoch {epoch}" if restored is None else f"epoch {epoch}, restored {restored.hash}"


async def _mark_uncertain(due: Due, commit: Commit, clock: Clock) -> bool:
    change = decisions.record_doubt(due.state, due.row, "RESTORED", None, clock.now())
    return isinstance(await commit(change), Committed)
