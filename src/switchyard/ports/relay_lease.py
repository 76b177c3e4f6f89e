"""The port that keeps one relay active among several processes, and its place in the journal."""

from typing import Protocol

import msgspec

from switchyard.domain.errors import SwitchyardError
from switchyard.domain.ids import WorkerId
from switchyard.domain.journal.lines import Place


class LeaseLost(SwitchyardError):
    """Another relay has taken over: nothing was written."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Which relay publishes to a topic, and how far it is."""

    topic: str
    topic_id: str
    """The topic that `place` is about; one that was created again has another id. Empty before the first."""
    place: Place
    """The last event such that it and all before it were delivered."""
    owner: WorkerId
    generation: int
    """Raised by every takeover: the fence for the place."""
    beat: int
    """Raised by every renewal: an owner that is paused or cut off does not raise it."""


class RelayLeases(Protocol):
    """One lease per topic, in the journal's database."""

    async def lease(self, topic: str) -> Lease | None:
        """Return the lease; none before the first claim."""
        ...

    async def claim(self, topic: str, owner: WorkerId, read: Lease | None) -> Lease | None:
        """Become the owner if the lease is still the one that was read; none if it is not."""
        ...

    async def renew(self, held: Lease, topic_id: str, place: Place) -> Lease:
        """Store the place and raise the beat; durable on return. Raises LeaseLost if another relay is the owner."""
        ...
