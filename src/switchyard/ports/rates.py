"""How often a client may ask."""

from datetime import timedelta
from typing import Protocol


class SharedRate(Protocol):
    """A limit per client over a sliding window; a rejected request takes nothing."""

    async def take(self, client: str) -> timedelta | None:
        """Go ahead (none), or how long to wait until there is room again; never raises."""
        ...
