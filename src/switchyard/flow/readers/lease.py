"""Holds the lease of this installation, so that a copy of its database does not start beside it.

Takes the lease at the start and renews it. The holder is the database, not the process: all processes of a database
hold it together, and one that starts again holds it at once. Losing it raises an alarm and stops nothing, because the
lease proves only who asked last.
"""

import asyncio
from datetime import timedelta
from typing import Final

import structlog

from switchyard.domain.errors import AlreadyRunning
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Lease
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# A database that moved to another machine starts after this time.
TTL: Final = timedelta(seconds=10)
# Four tries within the time.
RENEW_SECONDS: Final = 2.0


class InstallationLease:
    """Keeps the lease for a process; `lost_to` is another holder while there is one."""

    def __init__(self, lease: Lease, holder: str, *, clock: Clock, metrics: Metrics) -> None:
        self._lease = lease
        self._holder = holder
        self._clock = clock
        self._metrics = metrics
        self.lost_to: str | None = None

    async def open(self) -> None:
        """Take the lease; raises AlreadyRunning if another database still renews it. Without an answer, go on."""
        gives_up_at = self._clock.monotonic() + TTL.total_seconds() + RENEW_SECONDS
        while True:
            try:
                held_by = await self._take()
            except OSError as error:
                log.warning("lease_not_taken", lease=self._lease.name, error=str(error))
                return
            if held_by == self._holder:
                return
            if self._clock.monotonic() >= gives_up_at:
                raise AlreadyRunning(
                    f"a copy of this database is running, and two copies execute orders twice: {held_by} holds "
                    f"{self._lease.name}, this one is {self._holder}. Stop the other one. If this one goes on, run "
                    "`switchyard db restored` before the start"
                )
            await asyncio.sleep(RENEW_SECONDS)

    async def run(self) -> None:
        """Renew the lease for as long as the process lives."""
        while True:
            await self.run_once()
            await asyncio.sleep(RENEW_SECONDS)

    async def run_once(self) -> None:
        """Renew the lease, and note whether another database has it."""
        try:
            held_by = await self._take()
        except OSError:
            return  # the cache tells that Redis is away
        lost_to = None if held_by == self._holder else held_by
        if lost_to is not None and self.lost_to is None:
            log.critical("lease_lost", lease=self._lease.name, holder=lost_to)
        elif lost_to is None and self.lost_to is not None:
            log.warning("lease_held_again", lease=self._lease.name)
        self.lost_to = lost_to
        self._metrics.lease_lost.set(lost_to is not None)

    async def _take(self) -> str:
        return await asyncio.to_thread(self._lease.take, self._holder, TTL)
