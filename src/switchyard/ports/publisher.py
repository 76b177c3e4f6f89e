"""The publisher port: hands events to a topic of a message broker, in order, and tells when they are stored there."""

from asyncio import Future
from collections.abc import Sequence
from typing import Protocol

from switchyard.domain.bus import BusEvent
from switchyard.domain.errors import Unavailable


class BusUnavailable(Unavailable):
    """The brokers rejected a message or cannot be used; what was not delivered has to be published again."""


class Publisher(Protocol):
    """One topic; events of one account keep their order between `open` and `close`."""

    async def open(self) -> str:
        """Connect and return the topic's id. Raises BusUnavailable if the topic is missing or no broker answers."""
        ...

    async def topic_id(self) -> str:
        """Return the topic's id as it is now. Raises BusUnavailable."""
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
