"""Publishes execution reports in a numbered sequence, subject to the report faults (drop, late, reorder, duplicate)."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Literal

import msgspec

from switchyard.adapters.venues.simulator.faults import FaultPlan
from switchyard.adapters.venues.simulator.log import Entry, EventLog
from switchyard.adapters.venues.wire import REPORT_STATUS, Report, Reports, encode
from switchyard.domain.values import ZERO
from switchyard.ports.clock import Clock

# Long enough to keep polling of an idle venue rare, short enough that a reader can stop promptly.
WAIT_SECONDS = 0.5
# A reordered or duplicated report is published after this time even if no other report follows.
HELD_SECONDS = 0.2


class Reporting:
    """Publishes reports and logs each publication; a report published twice gets two numbers."""

    def __init__(self, log: EventLog, plan: FaultPlan, clock: Clock) -> None:
        self._log = log
        self._plan = plan
        self._clock = clock
        self._reports: list[msgspec.Raw] = []
        self._held_back: Report | None = None
        """A report that waits until the next one is published."""
        self._arrived = asyncio.Event()

    def restore(self, published: Sequence[Report], unpublished: Sequence[Report]) -> None:
        """Continue the logged sequence, and publish the reports that a crash prevented."""
        self._reports.extend(msgspec.Raw(encode(report)) for report in published)
        for report in unpublished:
            self._publish(report)

    def report(self, report: Report) -> None:
        """Publish a report now, later, after the next one, twice, or never, as the faults require."""
        if self._plan.hits("drop_reports"):
            self._log_publication("drop", report)  # without this line a restart would publish it
            return
        loop = asyncio.get_running_loop()
        if seconds := self._plan.seconds("late_reports"):
            loop.call_later(seconds, self._publish, report)
        elif self._held_back is None and self._plan.hits("reordered_reports"):
            self._held_back = report
            loop.call_later(HELD_SECONDS, self._publish_held_back)
        else:
            self._publish(report)
            self._publish_held_back()
        if self._plan.hits("duplicate_reports"):
            if self._plan.coin("duplicate_reports"):
                self._publish(report)
            else:
                loop.call_later(HELD_SECONDS, self._publish, report)

    async def wait(self, after: int) -> None:
        """Return when there is a report after this number, or after WAIT_SECONDS."""
        if after == len(self._reports):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._arrived.wait()

    def page(self, after: int, limit: int) -> Reports:
        """Return the reports after this number; a cursor beyond the end belongs to another log and restarts at 1."""
        cursor = after if after <= len(self._reports) else 0
        reports = tuple(self._reports[cursor : cursor + limit])
        return Reports(reports=reports, last_number=cursor + len(reports))

    def restart_numbers(self) -> None:
        """Drop the published reports; the next one gets number 1."""
        self._reports.clear()
        self._log.append(
            Entry(
                event="renumber",
                client_order_id="",
                venue_order_id="",
                exec_id=None,
                qty=ZERO,
                price=None,
                at=self._clock.now(),
            )
        )
        self._wake_readers()

    def _publish_held_back(self) -> None:
        held_back, self._held_back = self._held_back, None
        if held_back is not None:
            self._publish(held_back)

    def _publish(self, report: Report) -> None:
        self._reports.append(self._encoded(report))
        self._log_publication("report", report, len(self._reports))
        self._wake_readers()

    def _encoded(self, report: Report) -> msgspec.Raw:
        """The report as readers get it; after a restart of the simulator it is no longer damaged."""
        if self._plan.hits("unreadable_report"):
            return msgspec.Raw(encode({"exec_id": report.exec_id, "status": "excellent"}))
        if self._plan.hits("nul_in_report"):
            report = msgspec.structs.replace(report, exec_id=f"{report.exec_id}\0")
        return msgspec.Raw(encode(report))

    def _wake_readers(self) -> None:
        self._arrived.set()
        self._arrived = asyncio.Event()

    def _log_publication(self, event: Literal["report", "drop"], report: Report, number: int | None = None) -> None:
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
