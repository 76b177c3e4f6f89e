"""The newest reports in memory: a reader that keeps up needs no database."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from itertools import islice

from switchyard.domain.reports import ExecutionReport
from switchyard.ports.venue import ReportPage

# Long enough to spare an idle venue most of the asking, short enough for a reader that wants to stop.
WAIT_SECONDS = 0.5


class RecentReports:
    """A window on the end of a numbered row of reports."""

    def __init__(self, kept_max: int, last_number: int = 0) -> None:
        self._reports: deque[ExecutionReport] = deque(maxlen=kept_max)
        self._last_number = last_number
        self._news = asyncio.Event()

    def publish(self, reports: Sequence[ExecutionReport], last_number: int) -> None:
        """Add reports, the last of which has that number, and wake whoever waits."""
        if last_number == self._last_number:
            return
        if last_number - len(reports) != self._last_number:
            # Some were never seen here (a commit whose answer was lost): the window begins anew behind them.
            self._reports.clear()
        self._reports.extend(reports)
        self._last_number = last_number
        self.wake()

    def wake(self) -> None:
        """Let everyone who waits look again."""
        self._news.set()
        self._news = asyncio.Event()

    async def wait(self, after: int) -> None:
        """Return when there may be a report after this number, or a short while later."""
        if self._place(after) == self._last_number:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._news.wait()

    def page(self, after: int, limit: int) -> ReportPage | None:
        """The reports after this number; none when the window begins later than that."""
        place = self._place(after)
        if place == self._last_number:
            return ReportPage((), after)
        skipped = place - (self._last_number - len(self._reports))
        if skipped < 0:
            return None
        reports = list(islice(self._reports, skipped, skipped + limit))
        return ReportPage(reports, place + len(reports))

    def missed(self, after: int) -> range:
        """The numbers that such a reader has still to read."""
        return range(self._place(after) + 1, self._last_number + 1)

    def _place(self, after: int) -> int:
        # A reader that is ahead has read another row of reports, now lost: all of this one is news to it.
        return after if after <= self._last_number else 0
