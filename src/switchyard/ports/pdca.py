"""The PDCA store: the registry of strategies, and the durable queue of rechecks with their results and artifacts.

One store has all three ports. Several processes may use it at once.
"""

from typing import Protocol

from switchyard.domain.errors import Unavailable
from switchyard.ports.recheck_queue import Claimed, LostFence, NewArtifact, RecheckQueue, StoredArtifact
from switchyard.ports.recheck_requests import Created, ItemPage, RecheckRequests, StoredRequest, UnknownStrategies
from switchyard.ports.strategy_registry import (
    PAGE_MAX,
    Registered,
    SortField,
    StrategyPage,
    StrategyQuery,
    StrategyRegistry,
    TooManyStrategies,
)

__all__ = [
    "PAGE_MAX",
    "Claimed",
    "Created",
    "ItemPage",
    "LostFence",
    "NewArtifact",
    "PdcaStore",
    "PdcaUnavailable",
    "RecheckQueue",
    "RecheckRequests",
    "Registered",
    "SortField",
    "StoredArtifact",
    "StoredRequest",
    "StrategyPage",
    "StrategyQuery",
    "StrategyRegistry",
    "TooManyStrategies",
    "UnknownStrategies",
]


class PdcaUnavailable(Unavailable):
    """The store could not be read or written, and nothing was written; a repeat may succeed."""


class PdcaStore(StrategyRegistry, RecheckRequests, RecheckQueue, Protocol):
    """All of it."""

    async def close(self) -> None:
        """Finish the write in progress and disconnect."""
        ...
