"""Worker liveness as a set of names."""

from collections.abc import Sequence
from datetime import timedelta

from switchyard.domain.ids import WorkerId


class MemoryLiveness:
    """ports.journal.Liveness in memory; tests remove a worker from `living` to let it die."""

    def __init__(self) -> None:
        self.living: set[WorkerId] = set()
        self.send_lingers = timedelta()

    async def hold(self, worker: WorkerId) -> None:
        """Add the worker."""
        self.living.add(worker)

    async def dead(self, workers: Sequence[WorkerId]) -> frozenset[WorkerId]:
        """Return the workers that were not added."""
        return frozenset(workers) - self.living
