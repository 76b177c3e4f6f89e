"""The most recent execution reports in memory, so that a reader that keeps up causes no database reads."""

import asyncio
from collections.abc import Sequence

from switchyard.domain.orders.reports import ExecutionReport
from switchyard.ports.venue import ReportPage

# Long enough to keep polling of an idle venue rare, short enough that a reader can stop promptly.
WAIT_SECONDS = 0.5


class RecentReports:
    """The last `kept_max` reports of a sequence numbered from 1 without gaps."""

    def __init__(self, kept_max: int, last_number: int = 0) -> None:
        self._kept_max = kept_max
        self._reports: list[ExecutionReport] = []
        self._last_number = last_number
        self._readers: set[asyncio.Future[None]] = set()

    def publish(self, reports: Sequence[ExecutionReport], last_number: int) -> None:
        """Append reports, of which the last has number `last_number`, and wake waiting readers."""
        if last_number == self._last_number:
            return
        if last_number - len(reports) != self._last_number:
            # A commit succeeded but its result was lost, so some reports are missing here: keep only the newer ones.
            self._reports.clear()
        self._reports += reports
        if len(self._reports) > 2 * self._kept_max:  # rarely, because it moves every report that is kept
            del self._reports[: -self._kept_max]
        self._last_number = last_number
        self.wake()

    def wake(self) -> None:
        """Wake all waiting readers."""
        for reader in self._readers:
            _wake(reader)

    async def wait(self, after: int) -> None:
        """Return when there may be a report after this number, or after WAIT_SECONDS."""
        if self._cursor(after) != self._last_number:
            return
        loop = asyncio.get_running_loop()
        reader = loop.create_future()
        timer = loop.call_later(WAIT_SECONDS, _wake, reader)
        self._readers.add(reader)
        try:
            await reader
        finally:
            self._readers.discard(reader)
            timer.cancel()

    def page(self, after: int, limit: int) -> ReportPage | None:
        """Return the reports after this number, or None if they are no longer in memory."""
        cursor = self._cursor(after)
        if cursor == self._last_number:
            return ReportPage((), after)
        unread = self._last_number - cursor
        if unread > min(len(self._reports), self._kept_max):
            return None
        start = len(self._reports) - unread
        reports = self._reports[start : start + limit]
        return ReportPage(reports, cursor + len(reports))

    def unread(self, after: int) -> range:
        """The numbers of all reports after this one."""
        return range(self._cursor(after) + 1, self._last_number + 1)

    def _cursor(self, after: int) -> int:
        # A cursor ahead of the last number belongs to a lost sequence: such a reader starts again at 1.
        return after if after <= self._last_number else 0


def _wake(reader: "asyncio.Future[None]") -> None:
    if not reader.done():
        reader.set_result(None)
