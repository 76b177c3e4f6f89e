"""The leases of relays in memory."""

import msgspec

from switchyard.domain.ids import WorkerId
from switchyard.domain.journal.lines import Place
from switchyard.ports.bus import Lease, LeaseLost


class MemoryRelayLeases:
    """ports.bus.RelayLeases in memory."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    async def lease(self, topic: str) -> Lease | None:
        """Return the lease of a topic."""
        return self._leases.get(topic)

    async def claim(self, topic: str, owner: WorkerId, read: Lease | None) -> Lease | None:
        """Become the owner if the lease is still the one that was read."""
        if self._leases.get(topic) != read:
            return None
        if read is None:
            claimed = Lease(topic=topic, topic_id="", place=Place(), owner=owner, generation=1, beat=0)
        else:
            claimed = msgspec.structs.replace(read, owner=owner, generation=read.generation + 1, beat=0)
        self._leases[topic] = claimed
        return claimed

    async def renew(self, held: Lease, topic_id: str, place: Place) -> Lease:
        """Store the place and raise the beat."""
        current = self._leases[held.topic]
        if current.generation != held.generation:
            raise LeaseLost(f"{current.owner} publishes to {held.topic} now")
        renewed = msgspec.structs.replace(current, topic_id=topic_id, place=place, beat=current.beat + 1)
        self._leases[held.topic] = renewed
        return renewed
