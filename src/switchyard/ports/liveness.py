"""Which workers are alive."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from switchyard.domain.ids import WorkerId


class Liveness(Protocol):
    """Which workers are alive: proven by a lock that dies with its holder, never by a clock."""

    @property
    def send_lingers(self) -> timedelta:
        """How long a send may be under way after its sender's lock was found free; zero where that proves death."""
        ...

    async def hold(self, worker: WorkerId) -> None:
        """Be alive under this name until the process ends."""
        ...

    async def dead(self, workers: Sequence[WorkerId]) -> frozenset[WorkerId]:
        """Those of the named workers whose lock is free.

        The session is gone for certain; a worker that merely lost its connection looks the same until it has its lock
        back, so only a venue that deduplicates for good may be sent to again before `send_lingers` has passed.
        """
        ...
