"""Reports that came with a venue's answer: applied in the commit that records the answer.

The report stream delivers each of them again, so any of them may be left to the recorder. Proposes nothing itself:
`OutcomeWriter` commits what is decided here.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime

from switchyard.domain.changes import Change
from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState
from switchyard.domain.reports import ExecutionReport
from switchyard.flow.proposals import Answer, Decided, Proposal

# The recorder reads a report soon after it came with an answer; one that it reads later is recognised by its recorded
# execution, which takes a query.
APPLIED_MAX = 4_096

Key = tuple[VenueClientOrderId, str]


class CarriedReports:
    """The reports of one venue that came with its answers."""

    def __init__(
        self,
        proposal: Callable[[ExecutionReport, Order, datetime], Proposal | None],
        note_applied: Callable[[OrderState, Change, ExecutionReport], None],
    ) -> None:
        """`proposal` applies a report; none where only the recorder can."""
        self._proposal = proposal
        self._note_applied = note_applied
        self._under_way: set[Key] = set()
        self._ended = asyncio.Event()
        self._applied: dict[Key, None] = {}

    def begin(self, order: Order, reports: Sequence[ExecutionReport], now: datetime) -> list[Proposal]:
        """The proposals that apply the reports on the order; `end` must follow where there are any."""
        proposals = [proposal for report in reports if (proposal := self._proposal(report, order, now)) is not None]
        if len(proposals) < len(reports):
            return []  # in the order of the stream, or not at all
        self._under_way.update(map(_key, reports))
        return proposals

    def end(self, reports: Sequence[ExecutionReport], answers: Sequence[Answer]) -> None:
        """The proposals of these reports were answered; those without an answer are left to the recorder."""
        for report, answer in zip(reports, answers, strict=False):
            if isinstance(answer, Decided):
                self._applied[_key(report)] = None
                self._note_applied(answer.before, answer.change, report)
        self._under_way.difference_update(map(_key, reports))
        while len(self._applied) > APPLIED_MAX:
            del self._applied[next(iter(self._applied))]
        self._ended.set()

    async def others(self, reports: Sequence[ExecutionReport]) -> list[ExecutionReport]:
        """The reports that are still to be applied; waits for those that are being committed with their answers."""
        keys = set(map(_key, reports))
        while not self._under_way.isdisjoint(keys):
            self._ended.clear()
            await self._ended.wait()
        return [report for report in reports if _key(report) not in self._applied]


def _key(report: ExecutionReport) -> Key:
    return report.venue_client_order_id, report.exec_id
