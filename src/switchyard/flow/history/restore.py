"""After an older backup was restored: what the database believes unfinished may long have happened."""

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
# Rows whose next attempt lies ahead are unfinished as well.
FAR_AHEAD = datetime(9999, 1, 1, tzinfo=UTC)
# A mark of each restore: when the same backup is put back twice, both have the same epoch.
RESTORED = "restored"


async def declare_restored(
    epochs: Epochs, queries: OutboxQueries, commit: Commit, clock: Clock, randomness: Randomness
) -> tuple[int, int]:
    """Open a new epoch and bring every unfinished row into doubt; returns the epoch and how many rows there were.

    Nothing is sent by this. Afterwards the resolver asks the venues, and what they have is adopted.
    """
    # Before the epoch: one without the other must be the harmless one.
    await commit(Change(cursors=(Cursor(name=RESTORED, epoch=0, seq=0, hash=fresh_ulid(clock, randomness)),)))
    epoch = await epochs.open_epoch()
    count = 0
    while rows := [*await queries.due(FAR_AHEAD, PAGE), *await queries.unsettled("sending", PAGE)]:
        for due in rows:
            count += await _doubt(due, commit, clock)
    return epoch, count


async def incarnation_of(journal: Journal) -> str:
    """What tells this database from all others that its backups have become."""
    epoch = (await journal.head(0)).epoch
    mark = await journal.cursor(RESTORED)
    return f"epoch {epoch}" if mark is None else f"epoch {epoch}, restored {mark.hash}"


async def _doubt(due: Due, commit: Commit, clock: Clock) -> bool:
    change = decisions.record_doubt(due.state, due.row, "RESTORED", None, clock.now())
    return isinstance(await commit(change), Committed)
