"""Keeps one relay active among the processes of a database: takes the lease over from an owner that is gone or silent.

Reads and writes the lease; asks whether its owner is alive.
"""

from switchyard.domain.ids import WorkerId
from switchyard.domain.journal.lines import Place
from switchyard.ports.bus import Lease, RelayLeases
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Liveness

# An owner that has not renewed for this long is paused or cut off from the database: another relay takes over, though
# the owner may still publish. As long as workers wait for each other's lanes.
SILENCE_SECONDS_MAX = 10.0


class HeldLease:
    """The lease of one topic, as one process sees it; `held` while this process is the owner."""

    def __init__(self, topic: str, owner: WorkerId, *, leases: RelayLeases, liveness: Liveness, clock: Clock) -> None:
        self._topic = topic
        self._owner = owner
        self._leases = leases
        self._liveness = liveness
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        """Generation and beat of another owner, first seen at `_seen_at`."""
        self._seen_at = 0.0
        self.held: Lease | None = None

    async def take(self) -> Lease | None:
        """Become the owner if there is none, or if it is gone; return the lease as it is, also if another has it."""
        await self._liveness.hold(self._owner)
        found = await self._leases.lease(self._topic)
        if found is not None and not await self._may_take(found):
            return found
        self.held = await self._leases.claim(self._topic, self._owner, found)
        self._seen = None
        return self.held

    async def renew(self, topic_id: str, place: Place) -> None:
        """Store the place; raises LeaseLost where another relay has taken over."""
        assert self.held is not None, "it is not the owner"
        self.held = await self._leases.renew(self.held, topic_id, place)

    def lose(self) -> None:
        """Stand by from now on."""
        self.held = None

    async def _may_take(self, found: Lease) -> bool:
        if found.owner == self._owner or await self._liveness.dead([found.owner]):
            return True
        now, beat = self._clock.monotonic(), (found.generation, found.beat)
        if self._seen != beat:
            self._seen, self._seen_at = beat, now
        return now - self._seen_at > SILENCE_SECONDS_MAX
