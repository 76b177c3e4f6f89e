"""The port that changes the journal's identity after a restore."""

from typing import Protocol


class Epochs(Protocol):
    """The journal's epoch: readers that stored another epoch stop."""

    async def open_epoch(self) -> int:
        """Start the next epoch and return its number; events appended from now on carry it."""
        ...
