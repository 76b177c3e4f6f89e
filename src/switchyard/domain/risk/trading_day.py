"""The trading day of a time: a calendar day that begins at a roll time of a time zone."""

from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final

import msgspec


class TradingDay(msgspec.Struct, frozen=True):
    """Names trading days.

    With a roll time before noon, the day begins at that time; from noon on, the day that begins then is named after the
    next calendar day, as FX desks do it at 17:00 in New York.
    """

    zone: tzinfo
    roll: time

    def of(self, at: datetime) -> date:
        """The trading day of a time. Wall time decides, so that a day is an hour shorter or longer at a time change."""
        local = at.astimezone(self.zone)
        day = local.date()
        has_rolled = local.time() >= self.roll
        if self.roll.hour < 12:
            return day if has_rolled else day - timedelta(days=1)
        return day + timedelta(days=1) if has_rolled else day

    def end_of(self, at: datetime) -> datetime:
        """When the trading day of a time ends: the next roll time after it, in UTC.

        A roll time that a time change skips is taken at the offset before the change; one that comes twice counts once.
        """
        day = at.astimezone(self.zone).date()
        while True:
            end = datetime.combine(day, self.roll, self.zone).astimezone(UTC)
            if end > at:
                return end
            day += timedelta(days=1)


UTC_DAY: Final = TradingDay(UTC, time(0))
"""The calendar day in UTC, which is the default."""
