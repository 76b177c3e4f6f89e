"""The port that assigns lanes to workers."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from switchyard.domain.errors import DifferentDeclarations
from switchyard.domain.ids import VenueName, WorkerId

NOTHING_DECLARED: Final[Mapping[VenueName, str]] = MappingProxyType({})


class LaneShare(msgspec.Struct, frozen=True):
    """The lanes that a worker owns, and how many lanes a fair share is."""

    lanes: frozenset[int]
    share: int


class Lanes(Protocol):
    """Lane ownership: each lane has at most one owner, so orders of a lane are sent in journal order."""

    async def hold(
        self, worker: WorkerId, given_up: Sequence[int], declared: Mapping[VenueName, str] = NOTHING_DECLARED
    ) -> LaneShare:
        """Renew the worker's registration, release `given_up`, and take free lanes up to a fair share.

        `declared` is what the worker's settings say of each venue. Raises DifferentDeclarations, and holds nothing,
        where a live worker declares something else of one of them.
        """
        ...


def difference(
    other: WorkerId, theirs: Mapping[VenueName, str], ours: Mapping[VenueName, str]
) -> DifferentDeclarations:
    """The error of a worker that declares the first of the venues that differ otherwise than another worker."""
    venue = min(venue for venue in theirs if ours.get(venue, theirs[venue]) != theirs[venue])
    return DifferentDeclarations(venue, other, theirs[venue], ours[venue])
