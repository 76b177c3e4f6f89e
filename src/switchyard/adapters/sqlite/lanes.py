"""Lane ownership on SQLite: one process, one worker, all lanes."""

from collections.abc import Sequence

from switchyard.domain.ids import WorkerId
from switchyard.domain.outbox import LANES
from switchyard.ports.lanes import LaneShare


class SqliteLanes:
    """ports.lanes.Lanes without other workers to share with."""

    async def hold(self, worker: WorkerId, given_up: Sequence[int]) -> LaneShare:
        """Always all lanes."""
        return LaneShare(frozenset(range(LANES)), LANES)
