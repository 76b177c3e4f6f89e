"""The rate limit port."""

from datetime import timedelta
from typing import Protocol


class SharedRate(Protocol):
    """A limit per client over a sliding window; a rejected request does not count."""

    async def take(self, client: str) -> timedelta | None:
        """Count a request and return None, or return how long to wait; never raises."""
        ...
