"""The rate limit port."""

from datetime import timedelta
from typing import NamedTuple, Protocol


class Counted(NamedTuple):
    """A request that was counted, or rejected, and what is left."""

    wait: timedelta | None
    """None if the request is allowed, else how long to wait."""
    remaining: int
    """Requests that are allowed now."""
    reset: timedelta
    """When the oldest counted request leaves the window, and one more is allowed."""


class SharedRate(Protocol):
    """A limit per client over a sliding window; a rejected request does not count."""

    async def count(self, client: str) -> Counted:
        """Count a request, or reject it; never raises."""
        ...

    async def take(self, client: str) -> timedelta | None:
        """Count a request and return None, or return how long to wait; never raises."""
        ...
