"""Finds where a restored journal leaves the history that the books have read. Reads only."""

import msgspec

from switchyard.domain.errors import CannotStart
from switchyard.domain.journal.lines import Place
from switchyard.flow.backoffice.journal_bus import JournalSource


class Fork(msgspec.Struct, frozen=True):
    """The first epoch of a journal that leaves out events which the books have read."""

    epoch: int
    after: Place
    """The last event that both have."""
    first_seq: int
    """The first event of the epoch."""


async def fork_of(journal: JournalSource, place: Place, read: int) -> Fork:
    """Find the epoch that leaves out a part of what was read; raises CannotStart where none explains it."""
    reached = max(place.seq, read)
    for epoch in await journal.epochs():
        if epoch.after_seq < reached < epoch.first_seq:
            return Fork(epoch.epoch, await journal.place_of(epoch.after_seq), epoch.first_seq)
    raise CannotStart(
        f"the books were read up to event {reached}, and no epoch of this journal leaves that event out: it is not the "
        "journal of these books. Bring the right journal or the right books back"
    )
