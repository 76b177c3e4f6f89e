"""The token bucket port: the rate of new orders by account."""

from datetime import timedelta
from typing import Protocol


class TokenBuckets(Protocol):
    """One bucket for each account, full at the beginning and refilled at a constant rate; never raises."""

    async def take(self, account: str) -> timedelta | None:
        """Take a token and return None, or return how long to wait for the next one."""
        ...

    async def put_back(self, account: str) -> None:
        """Return a token that was not needed."""
        ...

    async def wait(self, account: str) -> timedelta | None:
        """Return how long `take` would have to wait; takes nothing."""
        ...
