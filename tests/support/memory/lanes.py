"""Lane ownership among several workers of one process, by the rules of PostgreSQL's `hold_lanes`."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from switchyard.domain.ids import VenueName, WorkerId
from switchyard.domain.orders.outbox import LANES
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Liveness
from switchyard.ports.outbox import NOTHING_DECLARED, LaneShare, difference

# Other workers take the lanes of a worker that has not renewed for this long: the same time as on PostgreSQL.
PATIENCE = timedelta(seconds=10)


class MemoryLanes:
    """ports.outbox.Lanes in memory."""

    def __init__(self, liveness: Liveness, clock: Clock, patience: timedelta = PATIENCE) -> None:
        self._liveness = liveness
        self._clock = clock
        self._patience_seconds = patience.total_seconds()
        self._renewed_at: dict[WorkerId, float] = {}
        self._declared: dict[WorkerId, Mapping[VenueName, str]] = {}
        self.owners: dict[int, WorkerId] = {}

    async def hold(
        self, worker: WorkerId, given_up: Sequence[int], declared: Mapping[VenueName, str] = NOTHING_DECLARED
    ) -> LaneShare:
        """Renew the worker's registration, release `given_up`, and take free lanes up to a fair share."""
        now = self._clock.monotonic()
        dead = await self._liveness.dead([other for other in self._renewed_at if other != worker])
        self._renewed_at = {
            other: renewed_at
            for other, renewed_at in self._renewed_at.items()
            if other not in dead and now - renewed_at <= self._patience_seconds
        }
        for other in sorted(self._renewed_at.keys() - {worker}):
            theirs = self._declared[other]
            if any(declared.get(venue, text) != text for venue, text in theirs.items()):
                raise difference(other, theirs, declared)
        self._renewed_at[worker], self._declared[worker] = now, declared
        self.owners = {
            lane: owner
            for lane, owner in self.owners.items()
            if owner in self._renewed_at and not (owner == worker and lane in given_up)
        }
        share = -(-LANES // len(self._renewed_at))  # rounded up
        room = max(share - len(self._owned_by(worker)), 0)
        free = [lane for lane in range(LANES) if lane not in self.owners]
        self.owners |= dict.fromkeys(free[:room], worker)
        return LaneShare(self._owned_by(worker), share)

    def _owned_by(self, worker: WorkerId) -> frozenset[int]:
        return frozenset(lane for lane, owner in self.owners.items() if owner == worker)
