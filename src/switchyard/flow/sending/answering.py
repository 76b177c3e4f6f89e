"""Watches whether a venue answers: one probe a second, on the monotonic clock.

A stage per venue. Asks the venue, writes nothing but a metric. The resolver counts the time in which an order in doubt
could have arrived by this watch, because a venue that was stopped works through its input only afterwards.
"""

import asyncio

import msgspec
import structlog

from switchyard.flow.health.breaker import VenueBreaker
from switchyard.ports.clock import Clock
from switchyard.ports.venue import ProbeResult, Venue, VenueUnavailable
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

PROBE_SECONDS = 1.0
# A venue that takes longer is not working through its input as it arrives.
ANSWER_SECONDS_MAX = 1.0
# The probe itself waits longer, so that a slow venue is not taken for one that does not answer.
WAIT_SECONDS_MAX = 5.0
# A probe without an answer for so long holds up the sending at once: what is sent meanwhile would come into doubt.
HANGING_SECONDS = 2.0
# A timer that is later than this shows that this process stood still meanwhile.
PAUSED_SECONDS = 0.5
# With a longer gap between two good probes, this process was paused or stalled: nothing is known about the time
# between. Two probes, each with the longest good answer.
GAP_SECONDS_MAX = 2 * (PROBE_SECONDS + ANSWER_SECONDS_MAX)


class Mark(msgspec.Struct, frozen=True):
    """A moment in a venue's time of answering, from which `VenueWatch.answered_since` counts."""

    run: int
    answered: float


class VenueWatch:
    """How long a venue has been answering every probe in time.

    The time counts up to the start of the last good probe. A failed or slow probe starts it anew; a busy venue (429)
    pauses it.
    """

    def __init__(self, venue: Venue, *, clock: Clock, metrics: Metrics, breaker: VenueBreaker | None = None) -> None:
        self._venue = venue
        self._clock = clock
        self._breaker = breaker
        self._seconds = metrics.venue_answering.labels(venue.name)
        self._run = 0
        """Counts the times that the answering time started anew."""
        self._answered = 0.0
        self._last_good: float | None = None
        """When the last probe started, if it was answered in time."""
        self._can_be_asked = False
        self._is_answering: bool | None = None
        """None until the first good probe: a start with a venue that is down is logged by its synchronisation."""
        self._seconds.set(0)

    @property
    def venue(self) -> Venue:
        """The watched venue."""
        return self._venue

    @property
    def can_be_asked(self) -> bool:
        """Whether the last probe was answered, and the venue is not busy; also where the answer came late."""
        return self._can_be_asked

    async def run(self) -> None:
        """Probe for as long as the process lives."""
        while True:
            started_at = self._clock.monotonic()
            await self.probe_once()
            elapsed = self._clock.monotonic() - started_at
            await asyncio.sleep(max(PROBE_SECONDS - elapsed, 0.0))

    async def probe_once(self) -> None:
        """Ask the venue once, and count the time since the last good probe."""
        started_at = self._clock.monotonic()
        result: ProbeResult | None = None
        failure = f"no answer within {WAIT_SECONDS_MAX} s"
        self._watch_for_hanging()
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                result = await self._venue.probe()
        except TimeoutError:
            pass
        except VenueUnavailable as error:
            failure = str(error)
        except Exception as error:  # an adapter that raises has a defect; the venue has not answered
            log.exception("venue_adapter_failed", venue=self._venue.name)
            failure = repr(error)
        finally:
            self._hanging.cancel()
        took = self._clock.monotonic() - started_at
        self._can_be_asked = result == "answered"
        if result is None:
            self._start_anew(failure)
        elif took > ANSWER_SECONDS_MAX:
            self._start_anew(f"the answer took {took:.1f} s")
        elif result == "busy":
            self._last_good = None
        else:
            self._count(started_at)
        self._seconds.set(self._answered)
        if self._breaker is not None:
            if result == "busy":
                failure = "busy (HTTP 429)"
            elif result == "answered":
                failure = f"the answer took {took:.1f} s"
            self._breaker.note_probe(None if result == "answered" and took <= ANSWER_SECONDS_MAX else failure)

    def mark(self) -> Mark:
        """The present moment."""
        since = 0.0 if self._last_good is None else self._clock.monotonic() - self._last_good
        return Mark(self._run, self._answered + since)

    def answered_since(self, mark: Mark) -> float:
        """For how many seconds since the mark the venue has been answering without a break."""
        return self._answered - mark.answered if mark.run == self._run else self._answered

    async def answered_for(self, seconds: float) -> None:
        """Return once the venue has been answering without a break for this time, counted from now."""
        mark = self.mark()
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            if self.answered_since(mark) >= seconds:
                return

    def _watch_for_hanging(self) -> None:
        loop = asyncio.get_running_loop()
        due_at = loop.time() + HANGING_SECONDS

        def note() -> None:
            if loop.time() - due_at > PAUSED_SECONDS:
                self._watch_for_hanging()  # this process was paused, not the venue: its answer may be waiting
            elif self._breaker is not None:
                self._breaker.note_hanging(HANGING_SECONDS)

        self._hanging = loop.call_at(due_at, note)

    def _count(self, started_at: float) -> None:
        if self._is_answering is False:
            log.info("venue_answering_again", venue=self._venue.name)
        self._is_answering = True
        if self._last_good is not None:
            gap = started_at - self._last_good
            if gap > GAP_SECONDS_MAX:
                self._start_anew(f"no probe for {gap:.1f} s")
            else:
                self._answered += gap
        self._last_good = started_at

    def _start_anew(self, why: str) -> None:
        if self._is_answering:
            self._is_answering = False
            log.warning("venue_not_answering", venue=self._venue.name, error=why, answered_seconds=self._answered)
        self._run += 1
        self._answered = 0.0
        self._last_good = None
