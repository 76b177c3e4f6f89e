"""The most recent execution reports in memory, so that a reader that keeps up causes no database reads."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from itertools import islice

from switchyard.domain.reports import ExecutionReport
from switchyard.ports.venue import ReportPage

# Long enough to keep polling of an idle venue rare, short enough that a reader can stop promptly.
WAIT_SECONDS = 0.5


class RecentReports:
    """The last `kept_max` reports of a sequence numbered from 1 without gaps."""

    def __init__(self, kept_max: int, last_number: int = 0) -> None:
        self._reports: deque[ExecutionReport] = deque(maxlen=kept_max)
        self._last_number = last_number
        self._arrived = asyncio.Event()

    def publish(self, reports: Sequence[ExecutionReport], last_number: int) -> None:
        """Append reports, of which the last has number `last_number`, and wake waiting readers."""
        if last_number == self._last_number:
            return
        if last_number - len(reports) != self._last_number:
            # A commit succeeded but its result was lost, so some reports are missing here: keep only the newer ones.
            self._reports.clear()
        self._reports.extend(reports)
        self._last_number = last_number
        self.wake()

    def wake(self) -> None:
        """Wake all waiting readers."""
        self._arrived.set()
        self._arrived = asyncio.Event()

    async def wait(self, after: int) -> None:
        """Return when there may be a report after this number, or after WAIT_SECONDS."""
        if self._cursor(after) == self._last_number:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._arrived.wait()

    def page(self, after: int, limit: int) -> ReportPage | None:
        """Return the reports after this number, or None if they are no longer in memory."""
        cursor = self._cursor(after)
        if cursor == self._last_number:
            return ReportPage((), after)
        skipped = cursor - (self._last_number - len(self._reports))
        if skipped < 0:
            return None
        reports = list(islice(self._reports, skipped, skipped + limit))
        return ReportPage(reports, cursor + len(reports))

    def unread(self, after: int) -> range:
        """The numbers of all reports after this one."""
        return range(self._cursor(after) + 1, self._last_number + 1)

    def _cursor(self, after: int) -> int:
        # A cursor ahead of the last number belongs to a lost sequence: such a reader starts again at 1.
        return after if after <= self._last_number else 0
