"""The rate at which orders and cancels may be sent to a venue (`VENUE_RATE_PER_SEC_`), shared by all workers.

Takes a token for each claim before it is committed. Reads token buckets; writes nothing.
"""

from collections.abc import Collection, Mapping, Sequence

from switchyard.domain.ids import VenueName
from switchyard.ports.cache import TokenBuckets
from switchyard.ports.clock import Clock
from switchyard.ports.outbox import Due
from switchyard.telemetry.metrics import Metrics


class VenueRates:
    """The token buckets of the venues that have a rate."""

    def __init__(self, buckets: Mapping[VenueName, TokenBuckets], clock: Clock, metrics: Metrics) -> None:
        self._buckets = buckets
        self._clock = clock
        self._metrics = metrics
        self._empty_until: dict[VenueName, float] = {}
        """On the monotonic clock: when the next token is expected."""

    @property
    def has_limits(self) -> bool:
        """Whether some venue has a rate."""
        return bool(self._buckets)

    def unlimited(self, venues: Collection[VenueName]) -> Collection[VenueName]:
        """Those of the venues that have no rate: a first attempt can begin without a token."""
        return [venue for venue in venues if venue not in self._buckets] if self._buckets else venues

    def ready(self, free: dict[VenueName, int]) -> dict[VenueName, int]:
        """The free slots, without those of venues whose bucket is empty."""
        if not self._empty_until:
            return free
        now = self._clock.monotonic()
        self._empty_until = {venue: until for venue, until in self._empty_until.items() if until > now}
        return {venue: count for venue, count in free.items() if venue not in self._empty_until}

    def wait_seconds(self) -> float:
        """How long until the next token of an empty bucket; infinite if none is empty."""
        now = self._clock.monotonic()
        return max(min(self._empty_until.values(), default=float("inf")) - now, 0.0)

    async def granted(self, claims: Sequence[Due]) -> list[Due]:
        """Those of the claims for which there is a token, which is taken; in journal order for each venue."""
        granted: list[Due] = []
        empty: set[VenueName] = set()
        for due in claims:
            venue = due.row.venue
            bucket = self._buckets.get(venue)
            if venue in empty:
                continue
            wait = None if bucket is None else await bucket.take(venue)
            if wait is None:
                granted.append(due)
                continue
            empty.add(venue)
            self._empty_until[venue] = self._clock.monotonic() + wait.total_seconds()
            self._metrics.routing.rate_waits.labels(venue).inc()
        return granted
