"""The broker's clock, as far as its responses show it: the skew between its time and ours.

Measured when the broker is probed and carried on by the monotonic clock, so a step of our own clock changes nothing.
"""

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from switchyard.ports.clock import Clock

# A slower answer says less about the broker's time than the previous one, carried on.
ROUND_TRIP_SECONDS_MAX: Final = 1.0


class VenueTime:
    """The broker's time; its skew counts as zero before the first measurement (see `is_known`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._anchor: tuple[datetime, float] | None = None
        """The broker's time, and our monotonic time when its answer arrived."""

    def measure(self, venue_time: str | None, date: str | None, asked_at: float) -> None:
        """Take the time from a response to a request that was sent at the monotonic time `asked_at`.

        The answer's time is taken as the time of its arrival: the broker's clock is ahead of that by the way back at
        most, so an expiry computed from it is never late.
        """
        answered_at = self._clock.monotonic()
        read = _time_of(venue_time) or _date_of(date)
        if read is not None and answered_at - asked_at <= ROUND_TRIP_SECONDS_MAX:
            self._anchor = (read, answered_at)

    @property
    def is_known(self) -> bool:
        """Whether the broker's time was measured."""
        return self._anchor is not None

    def now(self) -> datetime | None:
        """The broker's time, carried on from the last measurement; none before the first."""
        if self._anchor is None:
            return None
        read, answered_at = self._anchor
        return read + timedelta(seconds=self._clock.monotonic() - answered_at)

    @property
    def skew(self) -> timedelta:
        """How far the broker's clock is ahead of ours."""
        now = self.now()
        return timedelta() if now is None else now - self._clock.now()


def _time_of(text: str | None) -> datetime | None:
    try:
        read = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if read is None or read.tzinfo is None else read.astimezone(UTC)


def _date_of(text: str | None) -> datetime | None:
    """The `Date` header, which is cut to whole seconds: too early by up to one, so never late."""
    try:
        read = None if text is None else parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return None if read is None or read.tzinfo is None else read.astimezone(UTC)
