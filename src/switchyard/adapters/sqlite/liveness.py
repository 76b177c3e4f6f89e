"""Liveness of workers on SQLite: the file lock allows one process, so only its own workers are alive."""

from collections.abc import Sequence
from datetime import timedelta

from switchyard.domain.ids import WorkerId
from switchyard.ports.journal import KERNEL_HOLD


class SqliteLiveness:
    """ports.liveness.Liveness: this process holds the file lock, so every earlier process has ended."""

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
