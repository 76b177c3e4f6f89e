"""The turn port: which of several processes reads a source that nobody else assigns."""

from typing import Protocol


class Turn(Protocol):
    """Held by one process at a time; lost when its session ends, so the ledger's fence has the last word."""

    async def is_ours(self) -> bool:
        """Return whether this process has the turn now; takes it where it is free."""
        ...

    async def give_up(self) -> None:
        """Release it, so that another process may take it."""
        ...
