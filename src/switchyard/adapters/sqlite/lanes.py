"""Lane ownership on SQLite: one process, one worker, all lanes."""

from collections.abc import Mapping, Sequence

from switchyard.domain.ids import VenueName, WorkerId
from switchyard.domain.orders.outbox import LANES
from switchyard.ports.outbox import NOTHING_DECLARED, LaneShare


class SqliteLanes:
    """ports.lanes.Lanes without other workers to share with."""

    async def hold(
        self, worker: WorkerId, given_up: Sequence[int], declared: Mapping[VenueName, str] = NOTHING_DECLARED
    ) -> LaneShare:
        """Always all lanes."""
        return LaneShare(frozenset(range(LANES)), LANES)
