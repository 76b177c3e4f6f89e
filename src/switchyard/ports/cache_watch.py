"""The port through which a cache reports its lookups, failures and size, for example to metrics."""

from typing import Literal, Protocol

CacheError = Literal[
    "unavailable",  # no reply in time
    "refused",  # the server replied with an error, or did not take an entry
    "wrong_entry",  # the stored value was not written by us for this key
    "dropped",  # the write queue was full, or the server was unreachable
]


class CacheWatch(Protocol):
    """Counts the events of one cache."""

    def looked_up(self, *, hit: bool) -> None:
        """Count a finished lookup."""
        ...

    def failed(self, kind: CacheError) -> None:
        """Count a failure that the cache hid from its caller."""
        ...

    def expired(self, entries: int) -> None:
        """Count entries that were removed because their time was over."""
        ...

    def holds(self, entries: int) -> None:
        """Set the number of entries."""
        ...
