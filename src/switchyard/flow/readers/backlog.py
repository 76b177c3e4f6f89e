"""The messages of one topic that a subscriber has still to read, stored once for all subscribers.

Adding a message costs the same with one subscriber and with a thousand. Called by `StreamHub` and `Subscription`.
"""

from typing import TYPE_CHECKING

from switchyard.flow.readers.messages import Message

if TYPE_CHECKING:
    from switchyard.flow.readers.subscription import Subscription

# Trimming looks at every subscriber, so it waits until this many messages are stored.
TRIM_MIN = 64
# A full backlog is trimmed after another sixteenth of its capacity, not after every message.
TRIM_SHARE = 16


class Backlog:
    """Numbers messages from 0 on; a subscriber has the number of the message that it reads next."""

    def __init__(self, capacity: int) -> None:
        self.subscriptions: set[Subscription] = set()
        self.waiting: set[Subscription] = set()
        """Subscribers that have read everything and wait for their turn."""
        self.urgent: set[Subscription] = set()
        """Subscribers that have read everything and are woken with the next message: requests wait for them."""
        self.readers = 0
        """Subscribers that need the data of messages."""
        self._capacity = capacity
        self._messages: list[Message] = []
        self._first = 0
        self._trim_size = self._next_trim_size()

    @property
    def end(self) -> int:
        """The number that the next message gets."""
        return self._first + len(self._messages)

    def add(self, message: Message) -> int:
        """Store a message and return how many subscribers were ended because they are too far behind."""
        self._messages.append(message)
        return self._trim() if len(self._messages) >= self._trim_size else 0

    def read(self, start: int, limit: int) -> list[Message]:
        """Return up to `limit` messages from a number on."""
        offset = start - self._first
        assert offset >= 0, "a message was dropped before its last subscriber read it"
        return self._messages[offset : offset + limit]

    def _trim(self) -> int:
        """End the subscribers that are more than the capacity behind; drop what all others have read."""
        floor = self.end - self._capacity
        slow = [one for one in self.subscriptions if one.next_number < floor and not one.ended.done()]
        for subscription in slow:
            subscription.end("slow")
        reading = [one.next_number for one in self.subscriptions if not one.ended.done()]
        first = min(reading, default=self.end)
        del self._messages[: first - self._first]
        self._first = first
        self._trim_size = self._next_trim_size()
        return len(slow)

    def _next_trim_size(self) -> int:
        full = self._capacity + max(1, self._capacity // TRIM_SHARE)
        return min(max(TRIM_MIN, 2 * len(self._messages)), full)
