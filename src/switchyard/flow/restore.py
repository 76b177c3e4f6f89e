"""After an older backup was restored: what the database believes unfinished may long have happened."""

from datetime import UTC, datetime

from switchyard.domain import decisions
from switchyard.domain.changes import Committed
from switchyard.flow.decide import Commit
from switchyard.ports.clock import Clock
from switchyard.ports.queries import Due, Queries
from switchyard.ports.rebuild import Epochs

PAGE = 500
# Rows whose next attempt lies ahead are unfinished as well.
FAR_AHEAD = datetime(9999, 1, 1, tzinfo=UTC)


async def declare_restored(epochs: Epochs, queries: Queries, commit: Commit, clock: Clock) -> tuple[int, int]:
    """Open a new epoch and bring every unfinished row into doubt; returns the epoch and how many rows there were.

    Nothing is sent by this. Afterwards the resolver asks the venues, and what they have is adopted.
    """
    epoch = await epochs.open_epoch()
    count = 0
    while rows := [*await queries.due(FAR_AHEAD, PAGE), *await queries.unsettled("sending", PAGE)]:
        for due in rows:
            count += await _doubt(due, commit, clock)
    return epoch, count


async def _doubt(due: Due, commit: Commit, clock: Clock) -> bool:
    change = decisions.record_doubt(due.state, due.row, "RESTORED", None, clock.now())
    return isinstance(await commit(change), Committed)
