"""Reports that came with a venue's answer: applied in the commit that records the answer (sending.outcomes).

The report stream delivers each of them again, so any of them may be left to the recorder. Commits nothing itself.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.flow.commit.groups import Decided, Decision

# The recorder reads a report soon after it came with an answer; one that it reads later is recognised by its recorded
# execution, which takes a query.
APPLIED_MAX = 4_096

Key = tuple[VenueClientOrderId, str]


class InlineReports:
    """The reports of one venue that came with its answers."""

    def __init__(
        self,
        decision: Callable[[ExecutionReport, Order, datetime], Decision | None],
        note_applied: Callable[[OrderState, Change, ExecutionReport], None],
    ) -> None:
        """`decision` applies a report; None if only the recorder can."""
        self._decision = decision
        self._note_applied = note_applied
        self._under_way: set[Key] = set()
        self._ended = asyncio.Event()
        self._applied: dict[Key, None] = {}

    def begin(self, order: Order, reports: Sequence[ExecutionReport], now: datetime) -> list[Decision]:
        """Return the decisions that apply the reports on the order, or none; otherwise `end` must follow."""
        decisions = [found for report in reports if (found := self._decision(report, order, now)) is not None]
        if len(decisions) < len(reports):
            return []  # in the order of the stream, or not at all
        self._under_way.update([(report.venue_client_order_id, report.exec_id) for report in reports])
        return decisions

    def end(self, reports: Sequence[ExecutionReport], applied: Sequence[Decided]) -> None:
        """Take note that the first of these reports were applied; the others are left to the recorder."""
        for report, (before, change) in zip(reports, applied, strict=False):
            self._applied[report.venue_client_order_id, report.exec_id] = None
            self._note_applied(before, change, report)
        self._under_way.difference_update([(report.venue_client_order_id, report.exec_id) for report in reports])
        while len(self._applied) > APPLIED_MAX:
            del self._applied[next(iter(self._applied))]
        self._ended.set()

    async def others(self, reports: Sequence[ExecutionReport]) -> list[ExecutionReport]:
        """The reports that are still to be applied; waits for those that are being committed with their answers."""
        keys = [(report.venue_client_order_id, report.exec_id) for report in reports]
        await asyncio.sleep(0)  # an answer that has arrived before its report is recorded first, and the report with it
        while not self._under_way.isdisjoint(keys):
            self._ended.clear()
            await self._ended.wait()
        return [report for report, key in zip(reports, keys, strict=True) if key not in self._applied]
