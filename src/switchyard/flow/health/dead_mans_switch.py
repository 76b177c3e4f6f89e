"""Keeps the dead man's switch of a venue set: the venue cancels all open orders unless it is renewed in time.

Reads the monotonic clock, calls the venue, and writes nothing but metrics and the log. The process that sends to the
venue runs it. A restart within the time keeps the orders; the reports of the venue settle those that it cancelled.
"""

import asyncio
from typing import Final

import structlog

from switchyard.domain.market.health import SwitchState
from switchyard.ports.clock import Clock
from switchyard.ports.venue import CancelAllAfter, VenueUnavailable
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# Two renewals in a row may be lost before the third one would come too late.
RENEWALS_PER_TIME: Final = 3
# A stop must not wait longer for a venue that does not answer; the orders are cancelled then.
DISARM_SECONDS_MAX: Final = 3.0


class DeadMansSwitch:
    """Renews the time of one venue at a third of it."""

    def __init__(self, venue: CancelAllAfter, seconds: int, *, clock: Clock, metrics: Metrics) -> None:
        self._venue = venue
        self._seconds = seconds
        self._clock = clock
        self._failed = metrics.routing.switch_renewals_failed.labels(venue.name)
        self._armed = metrics.routing.switch_armed.labels(venue.name)
        self._set_until: float | None = None
        """On the monotonic clock, counted from before the request: the venue's own time ends no earlier."""
        self._armed.set(0)

    @property
    def state(self) -> SwitchState:
        """Whether the venue is known to have it set."""
        is_set = self._set_until is not None and self._clock.monotonic() < self._set_until
        return "set" if is_set else "not_set"

    @property
    def pause_seconds(self) -> float:
        """The time from the beginning of one renewal to that of the next."""
        return self._seconds / RENEWALS_PER_TIME

    async def run(self) -> None:
        """Renew for as long as the process lives."""
        while True:
            began_at = self._clock.monotonic()
            await self.run_once()
            elapsed = self._clock.monotonic() - began_at
            await asyncio.sleep(max(self.pause_seconds - elapsed, 0.0))

    async def run_once(self) -> int:
        """Renew once; returns 1 if the venue has acknowledged it."""
        began_at, was_set = self._clock.monotonic(), self.state == "set"
        try:
            async with asyncio.timeout(self.pause_seconds):
                await self._venue.cancel_all_after(self._seconds)
        except (VenueUnavailable, TimeoutError) as error:
            self._failed.inc()
            self._armed.set(self.state == "set")
            left = None if self._set_until is None else round(self._set_until - self._clock.monotonic(), 1)
            log.error(
                "venue_switch_not_renewed", venue=self._venue.name, error=str(error) or "no answer", seconds_left=left
            )
            return 0
        self._set_until = began_at + self._seconds
        self._armed.set(1)
        if not was_set:
            log.info("venue_switch_set", venue=self._venue.name, seconds=self._seconds)
        return 1

    async def disarm(self) -> None:
        """Switch it off, because the process ends in an orderly way and its open orders are to stay."""
        try:
            async with asyncio.timeout(DISARM_SECONDS_MAX):
                await self._venue.cancel_all_after(0)
        except (VenueUnavailable, TimeoutError) as error:
            log.error("venue_switch_not_disarmed", venue=self._venue.name, error=str(error) or "no answer")
            return
        self._set_until = None
        self._armed.set(0)
        log.warning("venue_switch_disarmed", venue=self._venue.name)
