"""The journal's identity on SQLite: the installation and the epochs. All functions run in the writer thread."""

from datetime import datetime

import apsw
import msgspec

from switchyard.domain.ids import Installation
from switchyard.domain.journal.changes import Cursor
from switchyard.domain.journal.lines import stamp
from switchyard.ports.journal import EPOCH_GAP, Epoch

# The text of the trigger's RAISE, when the head is not the one that this process saw last.
ANOTHER_HISTORY = "another history"

_KEEP_INSTALLATION = "UPDATE installation SET id = coalesce(?, id), tag = coalesce(?, tag)"
_SET_INSTALLATION = "INSERT OR REPLACE INTO installation (one, id, tag) VALUES (1, ?, ?)"
_ADD_EPOCH = "INSERT INTO journal_epochs (shard, epoch, first_seq, after_seq, opened_at) VALUES (0, ?, ?, ?, ?)"
_SET_CURSOR = "INSERT OR REPLACE INTO reader_cursors (name, epoch, seq, hash) VALUES (?, ?, ?, ?)"
# Cursors with epoch 0 count a venue's reports, not this journal's events.
_HIGHEST = """
SELECT max(epoch), max(seq) FROM (
    SELECT epoch, seq FROM journal_heads WHERE shard = 0
    UNION ALL SELECT epoch, seq FROM reader_cursors WHERE epoch > 0
)
"""


def installation(connection: apsw.Connection) -> Installation:
    """The identity that was made with the schema."""
    row = connection.execute("SELECT id, tag FROM installation").get
    return Installation(*row)


def set_installation(connection: apsw.Connection, identity: Installation) -> None:
    """Give the database this identity."""
    connection.execute(_SET_INSTALLATION, (identity.id, identity.tag))


def keep_installation(connection: apsw.Connection, installation_id: str | None, tag: str | None) -> None:
    """Give the database the parts of an identity that a replayed file shows."""
    connection.execute(_KEEP_INSTALLATION, (installation_id, tag))


def epochs(connection: apsw.Connection) -> list[Epoch]:
    """All epochs, the oldest first."""
    sql = "SELECT epoch, first_seq, after_seq FROM journal_epochs WHERE shard = 0 ORDER BY epoch"
    return [Epoch(*row) for row in connection.execute(sql)]


def set_epochs(connection: apsw.Connection, new: list[Epoch], at: datetime) -> None:
    """Replace all epochs by those of a replayed file."""
    connection.execute("DELETE FROM journal_epochs WHERE shard = 0")
    for epoch in new:
        connection.execute(_ADD_EPOCH, (*msgspec.structs.astuple(epoch), stamp(at)))


def set_cursor(connection: apsw.Connection, cursor: Cursor) -> None:
    """Store a cursor outside an append."""
    connection.execute(_SET_CURSOR, (cursor.name, cursor.epoch, cursor.seq, cursor.hash))


def open_epoch(
    connection: apsw.Connection, above_epoch: int, above_seq: int, now: datetime, marker: Cursor | None
) -> None:
    """Start an epoch above both numbers and above all of the database, in one transaction."""
    with connection:
        epoch, seq = connection.execute(_HIGHEST).get
        last_seq = connection.execute("SELECT seq FROM journal_heads WHERE shard = 0").get
        epoch, seq = max(epoch, above_epoch) + 1, max(seq, above_seq) + EPOCH_GAP
        connection.execute("UPDATE journal_heads SET epoch = ?, seq = ? WHERE shard = 0", (epoch, seq))
        connection.execute(_ADD_EPOCH, (epoch, seq + 1, last_seq, stamp(now)))
        if marker is not None:
            set_cursor(connection, msgspec.structs.replace(marker, epoch=epoch, seq=seq))
