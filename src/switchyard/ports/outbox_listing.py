"""The port that lists outbox rows for operators, beside a running process."""

from collections.abc import Sequence
from typing import Protocol

from switchyard.domain.outbox import OutboxRow


class OutboxListing(Protocol):
    """Outbox rows by status; needs no lock on the database."""

    async def rows(self, status: str, limit: int) -> Sequence[OutboxRow]:
        """Return rows of one status, oldest first."""
        ...
