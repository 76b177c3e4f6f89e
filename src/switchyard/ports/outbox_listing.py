"""Outbox rows for operators."""

from collections.abc import Sequence
from typing import Protocol

from switchyard.domain.outbox import OutboxRow


class OutboxListing(Protocol):
    """Outbox rows for people to look at, beside whoever is writing."""

    async def rows(self, status: str, limit: int) -> Sequence[OutboxRow]:
        """Rows of one status, oldest first."""
        ...
