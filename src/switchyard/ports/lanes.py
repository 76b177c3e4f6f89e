"""The port that assigns lanes to workers."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from switchyard.domain.ids import WorkerId


class LaneShare(msgspec.Struct, frozen=True):
    """The lanes that a worker owns, and how many lanes a fair share is."""

    lanes: frozenset[int]
    share: int


class Lanes(Protocol):
    """Lane ownership: each lane has at most one owner, so orders of a lane are sent in journal order."""

    async def hold(self, worker: WorkerId, given_up: Sequence[int]) -> LaneShare:
        """Renew the worker's registration, release `given_up`, and take free lanes up to a fair share."""
        ...
