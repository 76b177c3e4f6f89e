"""Lane ownership on PostgreSQL: calls the server-side function `hold_lanes` (`schema/programs/lanes.sql`)."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import msgspec

from switchyard.adapters.postgres.liveness import lock_key
from switchyard.adapters.postgres.reader import Reader
from switchyard.domain.ids import VenueName, WorkerId
from switchyard.ports.clock import Clock
from switchyard.ports.outbox import NOTHING_DECLARED, LaneShare, difference

# A worker that has not called for this long is paused or disconnected: the others take its lanes, though its process
# may still run.
SILENCE_MAX = timedelta(seconds=10)

_HOLD = """
SELECT lanes, share, workers, beats, other_worker, other_declared::text FROM hold_lanes(
    for_worker => $1, worker_lock_key => $2, given_up => $3, silent_workers => $4, silent_beats => $5,
    own_declared => $6::text::jsonb
)
"""


class PostgresLanes:
    """ports.lanes.Lanes among the workers of one database."""

    def __init__(self, reader: Reader, clock: Clock, silence_max: timedelta = SILENCE_MAX) -> None:
        self._reader = reader
        self._clock = clock
        self._silence_seconds_max = silence_max.total_seconds()
        self._beats: dict[str, tuple[int, float]] = {}
        """The last beat of each worker, and the monotonic time at which it was first seen here."""

    async def hold(
        self, worker: WorkerId, given_up: Sequence[int], declared: Mapping[VenueName, str] = NOTHING_DECLARED
    ) -> LaneShare:
        """Register the worker, release the lanes it gives up, and take free lanes up to its fair share."""
        now = self._clock.monotonic()
        silent = [
            (other, beat)
            for other, (beat, seen_at) in self._beats.items()
            if other != worker and now - seen_at > self._silence_seconds_max
        ]
        workers, beats = [other for other, _ in silent], [beat for _, beat in silent]
        own = msgspec.json.encode(dict(declared)).decode()
        [record] = await self._reader.unconfirmed_rows(_HOLD, worker, lock_key(worker), given_up, workers, beats, own)
        self._note_beats(record["workers"], record["beats"])
        if record["other_worker"] is not None:
            raise difference(record["other_worker"], msgspec.json.decode(record["other_declared"]), declared)
        return LaneShare(frozenset(record["lanes"]), record["share"])

    def _note_beats(self, workers: Sequence[str], beats: Sequence[int]) -> None:
        now = self._clock.monotonic()
        before = self._beats
        self._beats = {
            worker: before[worker] if worker in before and before[worker][0] == beat else (beat, now)
            for worker, beat in zip(workers, beats, strict=True)
        }
