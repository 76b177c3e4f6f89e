"""The health of every venue as this process sees it: which ones orders may be sent to, and how they answer.

Written by the stages of a worker, read by the dispatcher, the router and the API. A process that does not send knows
what the workers report; a venue of which nothing is known counts as healthy.
"""

from collections.abc import Callable, Iterable, Mapping

from switchyard.domain.ids import VenueName
from switchyard.domain.market.health import HealthRecord
from switchyard.flow.health.breaker import VenueBreaker
from switchyard.flow.health.quality import VenueQuality
from switchyard.ports.venue import SendOutcome


class HealthBoard:
    """The breakers and the quality of the venues."""

    def __init__(self) -> None:
        self._breakers: dict[VenueName, VenueBreaker] = {}
        self._quality: dict[VenueName, VenueQuality] = {}
        self._reported: Mapping[VenueName, HealthRecord] = {}
        self.blocked: frozenset[VenueName] = frozenset()
        """The venues whose breaker is not closed."""
        self.unheard: frozenset[VenueName] = frozenset()
        """Those of them that take cancels, because they only opened for want of reports."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after a breaker has opened or closed."""

    def watch(self, breakers: Iterable[VenueBreaker]) -> None:
        """Judge these venues from now on: this process sends to them."""
        for breaker in breakers:
            self._breakers[breaker.venue] = breaker
            self._quality[breaker.venue] = VenueQuality()
            breaker.on_change = self._note_change

    def breaker(self, venue: VenueName) -> VenueBreaker | None:
        """The venue's breaker; none in a process that does not send."""
        return self._breakers.get(venue)

    def record(self, venue: VenueName) -> HealthRecord | None:
        """What is known about the venue; none where no worker has reported on it."""
        breaker = self._breakers.get(venue)
        if breaker is None:
            return self._reported.get(venue)
        quality = self._quality[venue]
        return HealthRecord(
            breaker=breaker.state,
            reason=breaker.reason,
            faults=breaker.faults,
            latency_seconds=quality.latency_seconds,
            reject_rate=quality.reject_rate,
        )

    def reason(self, venue: VenueName) -> str | None:
        """Why no orders are sent to the venue; none if they are, or if that is not known here."""
        breaker = self._breakers.get(venue)
        if breaker is not None:
            return breaker.reason
        reported = self._reported.get(venue)
        return None if reported is None else reported.reason

    def note_reported(self, records: Mapping[VenueName, HealthRecord]) -> None:
        """What the workers have reported, in a process that does not send."""
        self._reported = records

    def is_trial(self, venue: VenueName) -> bool:
        """Whether only one order at a time may be sent to the venue."""
        breaker = self._breakers.get(venue)
        return breaker is not None and breaker.is_trial

    def note_sends(self, venue: VenueName, outcomes: Iterable[SendOutcome], seconds: float) -> None:
        """The venue was sent orders or a cancel, and these outcomes came after this time."""
        breaker = self._breakers.get(venue)
        if breaker is None:
            return
        quality = self._quality[venue]
        for outcome in outcomes:
            breaker.note_send(outcome)
            quality.note(outcome, seconds)

    def _note_change(self) -> None:
        blocked = {name: breaker for name, breaker in self._breakers.items() if not breaker.is_closed}
        self.blocked = frozenset(blocked)
        self.unheard = frozenset(name for name, breaker in blocked.items() if breaker.is_unheard)
        self.on_change()
