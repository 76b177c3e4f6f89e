"""The port that tells which workers are alive."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from switchyard.domain.ids import WorkerId


class Liveness(Protocol):
    """Worker liveness, proven by a lock that ends with its holder; timestamps are not used."""

    @property
    def send_lingers(self) -> timedelta:
        """How long a send may continue after its worker's lock became free; zero if a free lock proves the exit."""
        ...

    async def hold(self, worker: WorkerId) -> None:
        """Take the worker's lock until the process ends."""
        ...

    async def dead(self, workers: Sequence[WorkerId]) -> frozenset[WorkerId]:
        """Return the workers whose lock is free.

        A free lock proves that the session has ended. A worker that lost only its connection looks the same until it
        has taken its lock again, so before `send_lingers` has passed, resend only to a venue that deduplicates forever.
        """
        ...
