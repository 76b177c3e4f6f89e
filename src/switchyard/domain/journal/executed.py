"""The executions of one order that count, as its events tell: reported, corrected, voided, or revised too early.

Pure.
"""

from msgspec.structs import replace

from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.journal.facts import Figures, ReportFact, RevisionFact
from switchyard.domain.journal.lines import data_of, decode_report_fact, decode_revision_fact
from switchyard.domain.orders.order import Order
from switchyard.domain.values import ZERO


class Executed:
    """A fold over the order's events, in their order."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._figures: dict[str, Figures | None] = {}
        """By execution id; none of one that was taken back."""
        self._newest: dict[str, str] = {}
        """Corrected executions, with the id of the correction."""
        self.waiting: list[RevisionFact] = []
        """Revisions that came before their executions and were not carried out yet."""

    def take(self, event: JournalEvent) -> None:
        """Fold the next event."""
        if event.type == "ExecutionReport":
            report = decode_report_fact(data_of(event))
            if report.last_qty:
                self._figures[report.exec_id] = figures_of(self._order, report)
        elif event.type == "ExecutionRevised":
            self.revise(decode_revision_fact(data_of(event)))

    def revise(self, fact: RevisionFact) -> None:
        """Fold a revision."""
        if fact.early:
            self.waiting.append(fact)
            return
        if fact.late:
            self.waiting = [each for each in self.waiting if each.exec_id != fact.exec_id]
        if fact.revised is None or fact.ref_exec_id is None:
            return
        taken_back = self._resolved(fact.ref_exec_id)
        self._figures[taken_back] = None
        if fact.exec_type == "CORRECT":
            self._figures[fact.exec_id] = figures_of(self._order, fact)
            self._newest[taken_back] = fact.exec_id

    def is_known(self, exec_id: str) -> bool:
        """Whether the execution was reported."""
        return exec_id in self._figures

    def counted(self, exec_id: str) -> Figures | None:
        """What counts of the execution: of its newest correction; none where it was taken back or not reported."""
        return self._figures.get(self._resolved(exec_id))

    def due(self) -> RevisionFact | None:
        """The first revision that came too early and whose execution is here now."""
        for fact in self.waiting:
            if fact.ref_exec_id is not None and self.is_known(fact.ref_exec_id):
                return replace(fact, early=False, late=True)
        return None

    def _resolved(self, exec_id: str) -> str:
        while exec_id in self._newest:
            exec_id = self._newest[exec_id]
        return exec_id


def figures_of(order: Order, report: ReportFact) -> Figures:
    """The figures of an execution; without a price it counts at the order's, as in the position."""
    price = order.price if report.last_price is None else report.last_price
    return Figures(report.last_qty, ZERO if price is None else price)
