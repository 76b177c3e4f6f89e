"""The port of the journal's identity: its installation and its epochs."""

from datetime import datetime
from typing import Protocol

from switchyard.domain.ids import Installation
from switchyard.domain.journal.changes import Cursor
from switchyard.ports.journal import Head

# A new epoch starts this far above the highest number found anywhere: numbers that were published and are lost in the
# restored database, in other processes' files too, do not come again.
EPOCH_GAP = 1_000_000_000
# The cursor that `switchyard db restored` writes; its hash identifies the restore.
RESTORED = "restored"


class Epochs(Protocol):
    """The journal's identity, which outlives a restore, and its epoch, which does not."""

    async def installation(self) -> Installation:
        """Return the identity that was made with the schema."""
        ...

    async def open_epoch(self, above_epoch: int, above_seq: int, now: datetime, marker: Cursor | None = None) -> Head:
        """Start an epoch above both numbers and above all of the journal and its readers' cursors; return its head.

        The head is EPOCH_GAP above the highest number; the chain continues from the last event's hash. `marker` is
        stored in the same transaction, with the new epoch and the number of its head. Every other process that has
        appended or read the head before gets HistoryMismatch at its next append.
        """
        ...
