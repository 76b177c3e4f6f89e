"""The journal's identity on PostgreSQL: the installation and the epochs."""

from datetime import datetime

import msgspec

from switchyard.adapters.postgres.connection import Connection, Record
from switchyard.domain.ids import Installation
from switchyard.domain.journal.changes import Cursor
from switchyard.ports.journal import EPOCH_GAP, Epoch, Head

INSTALLATION = "SELECT id, tag FROM installation"
EPOCHS = "SELECT epoch, first_seq, after_seq FROM journal_epochs WHERE shard = $1 ORDER BY epoch"
LAST_EVENT = "SELECT epoch, seq, hash FROM journal WHERE shard = $1 AND seq <= $2 ORDER BY seq DESC LIMIT 1"

_KEEP_INSTALLATION = "UPDATE installation SET id = coalesce($1, id), tag = coalesce($2, tag)"
_SET_INSTALLATION = """
INSERT INTO installation (id, tag) VALUES ($1, $2) ON CONFLICT (one) DO UPDATE SET id = excluded.id, tag = excluded.tag
"""
_ADD_EPOCH = "INSERT INTO journal_epochs (shard, epoch, first_seq, after_seq, opened_at) VALUES ($1, $2, $3, $4, $5)"
_SET_CURSOR = """
INSERT INTO reader_cursors (name, epoch, seq, hash) VALUES ($1, $2, $3, $4)
ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq, hash = excluded.hash
"""
# The row exists from the first append on; the lock keeps appends away until the epoch is committed.
_ENSURE_HEAD = (
    "INSERT INTO journal_heads (shard, epoch, seq, hash) VALUES (0, 1, 0, repeat('0', 64)) ON CONFLICT DO NOTHING"
)
_LOCK_HEAD = "SELECT epoch, seq, hash FROM journal_heads WHERE shard = 0 FOR UPDATE"
# Cursors with epoch 0 count a venue's reports, not this journal's events.
_HIGHEST_CURSOR = "SELECT coalesce(max(epoch), 0), coalesce(max(seq), 0) FROM reader_cursors WHERE epoch > 0"


async def set_installation(connection: Connection, identity: Installation) -> None:
    """Give the database this identity."""
    await connection.execute(_SET_INSTALLATION, identity.id, identity.tag)


async def keep_installation(connection: Connection, installation_id: str | None, tag: str | None) -> None:
    """Give the database the parts of an identity that a replayed file shows."""
    await connection.execute(_KEEP_INSTALLATION, installation_id, tag)


async def set_epochs(connection: Connection, shard: int, epochs: list[Epoch], at: datetime) -> None:
    """Replace all epochs by those of a replayed file."""
    await connection.execute("DELETE FROM journal_epochs WHERE shard = $1", shard)
    await connection.executemany(_ADD_EPOCH, [(shard, *msgspec.structs.astuple(epoch), at) for epoch in epochs])


async def set_cursor(connection: Connection, cursor: Cursor) -> None:
    """Store a cursor outside an append."""
    await connection.execute(_SET_CURSOR, cursor.name, cursor.epoch, cursor.seq, cursor.hash)


async def open_epoch(
    connection: Connection, above_epoch: int, above_seq: int, now: datetime, marker: Cursor | None
) -> Head:
    """Start an epoch above both numbers and above all of the database, in one transaction."""
    async with connection.transaction():
        await connection.execute(_ENSURE_HEAD)
        head: Record = await connection.fetchrow(_LOCK_HEAD)
        cursor: Record = await connection.fetchrow(_HIGHEST_CURSOR)
        epoch = max(head[0], cursor[0], above_epoch) + 1
        seq = max(head[1], cursor[1], above_seq) + EPOCH_GAP
        await connection.execute("UPDATE journal_heads SET epoch = $1, seq = $2 WHERE shard = 0", epoch, seq)
        await connection.execute(_ADD_EPOCH, 0, epoch, seq + 1, head[1], now)
        # An append creates segments half a segment ahead, which is not enough after a jump.
        await connection.execute("SELECT ensure_segment($1)", seq + 1)
        if marker is not None:
            await set_cursor(connection, msgspec.structs.replace(marker, epoch=epoch, seq=seq))
    return Head(epoch, seq, head[2])
