"""The port that tells which workers are alive."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Protocol

from switchyard.domain.ids import WorkerId

# How long the kernel may still deliver what a process wrote before it ended: closing a socket, also by a kill, leaves
# unacknowledged bytes with the kernel, which retransmits them until the network heals. An adapter that sets
# TCP_USER_TIMEOUT bounds this to 5 s; the HTTP adapter also sets a zero linger, which discards the bytes at once, but
# other adapters may not, and the option does not reach a connection whose process was killed before it was set.
KERNEL_HOLD: Final = timedelta(seconds=5)


class Liveness(Protocol):
    """Worker liveness, proven by a lock that ends with its holder; timestamps are not used."""

    @property
    def send_lingers(self) -> timedelta:
        """How long bytes of a send may still reach the venue after its worker's lock became free: `KERNEL_HOLD`, and
        where a free lock does not prove the process's exit, also the longest time that an attempt can take."""
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
