"""The bus: sources of the journal's events that a process may read, and the publisher of the relay."""

from asyncio import Future
from collections.abc import Sequence
from typing import Protocol

import msgspec

from switchyard.domain.errors import CannotStart, SwitchyardError, Unavailable
from switchyard.domain.ids import WorkerId
from switchyard.domain.journal.lines import BusEvent, Place, SourcePosition
from switchyard.ports.books import SourceState


class TopicResized(CannotStart):
    """The topic has another number of partitions: an account's events would come in another order."""


class BusUnavailable(Unavailable):
    """The brokers rejected a message or cannot be used; what was not delivered has to be published again."""


class Publisher(Protocol):
    """One topic; events of one account keep their order between `open` and `close`."""

    async def open(self, former_id: str) -> str:
        """Connect and return the topic's id. Raises BusUnavailable if the topic is missing or no broker answers.

        `former_id` is the one that this returned before, also in another process, or empty. Raises TopicResized if it
        is the same topic with another number of partitions.
        """

    async def topic_id(self, former_id: str) -> str:
        """Return the topic's id as it is now. Raises BusUnavailable and TopicResized."""

    async def send(self, events: Sequence[BusEvent]) -> "Future[None]":
        """Hand linked events (`previous_seq`) over and return their delivery: done when the brokers have stored all.

        The delivery raises BusUnavailable if they did not; then later ones may not be stored either, and the publisher
        has to be closed.
        """

    async def close(self) -> None:
        """Drop what was not delivered and disconnect; it can be opened again."""


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

    async def claim(self, topic: str, owner: WorkerId, read: Lease | None) -> Lease | None:
        """Become the owner if the lease is still the one that was read; none if it is not."""

    async def renew(self, held: Lease, topic_id: str, place: Place) -> Lease:
        """Store the place and raise the beat; durable on return. Raises LeaseLost if another relay is the owner."""


class Page(msgspec.Struct, frozen=True):
    """The next events of a source, and the position of a reader that has taken them."""

    events: tuple[BusEvent, ...]
    position: SourcePosition
    """May move without an event, where a broker has records that are none."""


class Source(Protocol):
    """Events in order after a position that the reader names; the events of one account are all in one source."""

    @property
    def name(self) -> str:
        """Names the source for ever: `journal`, or `kafka:<topic id>/<partitions>:<partition>`."""

    @property
    def start(self) -> SourcePosition:
        """The position before the first event."""

    async def check(self, position: SourcePosition) -> None:
        """Raise HistoryMismatch unless a reader may continue at this position; Unavailable if it cannot tell."""

    async def page(self, after: SourcePosition, limit: int) -> Page:
        """Return the next events, at most `limit`; none, at the same position, where there are none yet.

        The journal raises HistoryMismatch where the first does not follow the position, or one the one before it. A
        partition holds some accounts only: there, the ledger finds a gap by `BusEvent.previous_seq`.
        """

    async def lag(self, position: SourcePosition) -> int:
        """Return how many events are after the position, about."""


class Bus(Protocol):
    """The sources that this process may read."""

    async def sources(self) -> Sequence[Source]:
        """Return the sources that are assigned to this process now; asked again and again, because it changes."""

    async def left_to_others(self, states: Sequence[SourceState]) -> int:
        """Return how many events wait for another process that alone may read them; `states` is how far it is."""

    async def release(self, source: Source) -> None:
        """Give a source up after another process has claimed it; `sources` may assign it again later."""
