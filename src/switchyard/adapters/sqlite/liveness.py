"""Workers on SQLite: one file lock proves that no other one lives, so one worker owns all lanes."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta

from switchyard.domain.ids import VenueName, WorkerId
from switchyard.domain.orders.outbox import LANES
from switchyard.ports.journal import KERNEL_HOLD
from switchyard.ports.outbox import NOTHING_DECLARED, LaneShare


class SqliteLiveness:
    """ports.journal.Liveness: this process holds the file lock, so every earlier process has ended."""

    def __init__(self) -> None:
        self._alive: set[WorkerId] = set()

    @property
    def send_lingers(self) -> timedelta:
        """The file lock is released only when its process ends, but the kernel may still deliver what it wrote."""
        return KERNEL_HOLD

    async def hold(self, worker: WorkerId) -> None:
        """Mark the worker as alive until the process ends."""
        self._alive.add(worker)

    async def dead(self, workers: Sequence[WorkerId]) -> frozenset[WorkerId]:
        """The workers that do not run in this process."""
        return frozenset(workers) - self._alive


class SqliteLanes:
    """ports.outbox.Lanes without other workers to share with."""

    async def hold(
        self, worker: WorkerId, given_up: Sequence[int], declared: Mapping[VenueName, str] = NOTHING_DECLARED
    ) -> LaneShare:
        """Always all lanes."""
        return LaneShare(frozenset(range(LANES)), LANES)


class SqliteVenueSessions:
    """ports.outbox.VenueSessions: no other process can send, so this one holds every session."""

    async def take(self, venue: VenueName, worker: WorkerId) -> bool:
        """Always."""
        return True

    async def lost(self, venue: VenueName) -> None:
        """Never."""
        await asyncio.Event().wait()

    async def release(self, venue: VenueName) -> None:
        """Nothing to release."""

    async def share(self, venue: VenueName) -> None:
        """Nothing to forget."""
