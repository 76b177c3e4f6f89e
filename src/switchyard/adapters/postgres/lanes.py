"""Which worker has which lanes, in two small tables that all workers share."""

from collections.abc import Sequence
from datetime import timedelta

from switchyard.adapters.postgres.connection import Reader
from switchyard.adapters.postgres.liveness import lock_key
from switchyard.domain.ids import WorkerId
from switchyard.ports.lanes import LaneShare

# A worker that is silent for so long is paused, or cut off: the others take its lanes, though it may still live.
PATIENCE = timedelta(seconds=10)

_HOLD = "SELECT lanes, share FROM hold_lanes($1, $2, $3, $4)"


class PostgresLanes:
    """ports.queries.Lanes among the workers of one database."""

    def __init__(self, reader: Reader, patience: timedelta = PATIENCE) -> None:
        self._reader = reader
        self._patience = patience

    async def hold(self, worker: WorkerId, given_up: Sequence[int]) -> LaneShare:
        """Stay known as a worker for a while, let these go, and take of the free lanes up to a fair share."""
        [record] = await self._reader.rows(_HOLD, worker, lock_key(worker), given_up, self._patience)
        return LaneShare(frozenset(record["lanes"]), record["share"])
