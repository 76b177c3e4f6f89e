"""The numbered row of reports: what readers are told, in which order, and how often."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Literal

from switchyard.adapters.venues.simulator.faults import FaultPlan
from switchyard.adapters.venues.simulator.log import Entry, EventLog
from switchyard.adapters.venues.wire import REPORT_STATUS, Report, Reports
from switchyard.ports.clock import Clock

# Long enough to spare a quiet venue most of the asking, short enough for a reader that wants to stop.
WAIT_SECONDS = 0.5
# A report that was to be overtaken or repeated does not wait for ever for the next one to come.
HELD_SECONDS = 0.2


class Reporting:
    """Tells of executions as the faults will have it; each telling has the next number."""

    def __init__(self, log: EventLog, plan: FaultPlan, clock: Clock) -> None:
        self._log = log
        self._plan = plan
        self._clock = clock
        self._row: list[Report] = []
        self._overtaken: Report | None = None
        self._news = asyncio.Event()

    def restore(self, told: Sequence[Report], untold: Sequence[Report]) -> None:
        """Continue the row that the log holds, with what a crash kept from being told."""
        self._row.extend(told)
        for report in untold:
            self._tell(report)

    def report(self, report: Report) -> None:
        """Tell of an execution: now, later, behind the next one, twice, or never."""
        if self._plan.hits("drop_reports"):
            self._note("drop", report)  # or a restart would tell of it after all
            return
        loop = asyncio.get_running_loop()
        if seconds := self._plan.seconds("late_reports"):
            loop.call_later(seconds, self._tell, report)
        elif self._overtaken is None and self._plan.hits("reordered_reports"):
            self._overtaken = report
            loop.call_later(HELD_SECONDS, self._tell_overtaken)
        else:
            self._tell(report)
            self._tell_overtaken()
        if self._plan.hits("duplicate_reports"):
            if self._plan.coin("duplicate_reports"):
                self._tell(report)
            else:
                loop.call_later(HELD_SECONDS, self._tell, report)

    async def wait(self, after: int) -> None:
        """Return when there is a report after this number, or a short while later."""
        if after == len(self._row):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._news.wait()

    def page(self, after: int, limit: int) -> Reports:
        """The reports after this number; a reader that is ahead has read another log and begins anew."""
        place = after if after <= len(self._row) else 0
        reports = tuple(self._row[place : place + limit])
        return Reports(reports=reports, last_number=place + len(reports))

    def _tell_overtaken(self) -> None:
        overtaken, self._overtaken = self._overtaken, None
        if overtaken is not None:
            self._tell(overtaken)

    def _tell(self, report: Report) -> None:
        self._row.append(report)
        self._note("report", report, len(self._row))
        self._news.set()
        self._news = asyncio.Event()

    def _note(self, event: Literal["report", "drop"], report: Report, number: int | None = None) -> None:
        self._log.append(
            Entry(
                event=event,
                client_order_id=report.client_order_id,
                venue_order_id=report.broker_order_id,
                exec_id=report.exec_id,
                qty=report.last_qty,
                price=report.last_price,
                at=self._clock.now(),
                status=REPORT_STATUS[report.status],
                number=number,
            )
        )
