"""The publisher port: hands events to a topic of a message broker, in order, and tells when they are stored there."""

from asyncio import Future
from collections.abc import Sequence
from typing import Protocol

from switchyard.domain.errors import CannotStart, Unavailable
from switchyard.domain.journal.lines import BusEvent


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
        ...

    async def topic_id(self, former_id: str) -> str:
        """Return the topic's id as it is now. Raises BusUnavailable and TopicResized."""
        ...

    async def send(self, events: Sequence[BusEvent]) -> "Future[None]":
        """Hand linked events (`previous_seq`) over and return their delivery: done when the brokers have stored all.

        The delivery raises BusUnavailable if they did not; then later ones may not be stored either, and the publisher
        has to be closed.
        """
        ...

    async def close(self) -> None:
        """Drop what was not delivered and disconnect; it can be opened again."""
        ...
