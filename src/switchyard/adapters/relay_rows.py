"""The table `relays`: its columns and statements, the same on both SQL engines but for their parameters."""

from collections.abc import Sequence
from typing import Any

from switchyard.domain.ids import WorkerId
from switchyard.domain.journal.lines import GENESIS, Place
from switchyard.ports.bus import Lease

_COLUMNS = "topic, topic_id, epoch, seq, hash, owner, generation, beat"

FIND = f"SELECT {_COLUMNS} FROM relays WHERE topic = $1"
# A claim that read no lease has generation 0, which no row has.
CLAIM = f"""
INSERT INTO relays ({_COLUMNS}) VALUES ($1, '', 1, 0, '{GENESIS}', $2, 1, 0)
ON CONFLICT (topic) DO UPDATE SET owner = excluded.owner, generation = relays.generation + 1, beat = 0
WHERE relays.generation = $3 AND relays.beat = $4
RETURNING {_COLUMNS}
"""
RENEW = f"""
UPDATE relays SET topic_id = $3, epoch = $4, seq = $5, hash = $6, beat = beat + 1
WHERE topic = $1 AND generation = $2
RETURNING {_COLUMNS}
"""


def claim_values(topic: str, owner: WorkerId, read: Lease | None) -> tuple[Any, ...]:
    """The parameters of CLAIM."""
    return (topic, owner, *((0, 0) if read is None else (read.generation, read.beat)))


def renew_values(held: Lease, topic_id: str, place: Place) -> tuple[Any, ...]:
    """The parameters of RENEW."""
    return (held.topic, held.generation, topic_id, place.epoch, place.seq, place.hash)


def lease(row: Sequence[Any]) -> Lease:
    """The lease in a row."""
    topic, topic_id, epoch, seq, digest, owner, generation, beat = row
    return Lease(
        topic=topic,
        topic_id=topic_id,
        place=Place(epoch, seq, digest),
        owner=WorkerId(owner),
        generation=generation,
        beat=beat,
    )
