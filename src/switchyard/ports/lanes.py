"""Which worker sends which lanes."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from switchyard.domain.ids import WorkerId


class LaneShare(msgspec.Struct, frozen=True):
    """The lanes that a worker has, and how many would be its fair share."""

    lanes: frozenset[int]
    share: int


class Lanes(Protocol):
    """Which worker sends what: each lane has one owner, so that nothing overtakes within it."""

    async def hold(self, worker: WorkerId, given_up: Sequence[int]) -> LaneShare:
        """Stay known as a worker for a while, let these go, and take of the free lanes up to a fair share."""
        ...
