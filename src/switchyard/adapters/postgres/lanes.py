"""Lane ownership on PostgreSQL: calls the server-side function `hold_lanes` (`schema/programs/lanes.sql`)."""

from collections.abc import Sequence
from datetime import timedelta

from switchyard.adapters.postgres.connection import Reader
from switchyard.adapters.postgres.liveness import lock_key
from switchyard.domain.ids import WorkerId
from switchyard.ports.lanes import LaneShare

# A worker that has not called for this long is paused or disconnected: the others take its lanes, though its process
# may still run.
SILENCE_MAX = timedelta(seconds=10)

_HOLD = """
SELECT lanes, share FROM hold_lanes(for_worker => $1, worker_lock_key => $2, given_up => $3, silence_max => $4)
"""


class PostgresLanes:
    """ports.lanes.Lanes among the workers of one database."""

    def __init__(self, reader: Reader, silence_max: timedelta = SILENCE_MAX) -> None:
        self._reader = reader
        self._silence_max = silence_max

    async def hold(self, worker: WorkerId, given_up: Sequence[int]) -> LaneShare:
        """Register the worker, release the lanes it gives up, and take free lanes up to its fair share."""
        [record] = await self._reader.rows(_HOLD, worker, lock_key(worker), given_up, self._silence_max)
        return LaneShare(frozenset(record["lanes"]), record["share"])
