"""Recognises reports: which can be stored, which were recorded before, and under which execution id each is recorded.

Reads the recorded executions; writes nothing.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.journal.changes import Execution
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reports import ExecutionReport, is_storable, qualified
from switchyard.ports.queries import Queries

States = Mapping[VenueClientOrderId, OrderState]


def unstorable_field(report: ExecutionReport) -> str | None:
    """The report's first id that no engine can store; none if all can be stored."""
    for name in ("exec_id", "venue_client_order_id", "venue_order_id", "ref_exec_id", "fee_currency"):
        text = getattr(report, name)
        if text is not None and not (text.isascii() and text.isprintable()) and not is_storable(text):
            return name
    return None


def of_order(report: ExecutionReport, state: OrderState | None) -> ExecutionReport:
    """The report under its order's own id; the id of an amend, under which the venue reports, is kept beside it."""
    if state is None or state.order.venue_client_order_id == report.venue_client_order_id:
        return report
    return replace(
        report,
        venue_client_order_id=state.order.venue_client_order_id,
        leg_client_order_id=report.venue_client_order_id,
    )


def is_known_end(report: ExecutionReport, order: Order) -> bool:
    """Whether the report only repeats an end that is recorded already."""
    return not report.last_qty and is_final(order.status) and order.status == report.status


async def new_reports(
    queries: Queries, venue: VenueName, reports: Sequence[ExecutionReport], states: States
) -> dict[int, ExecutionReport]:
    """The reports that were not recorded before, by their place in `reports`, each under the id to record it with.

    An id that was recorded for another order is not a repeat: the report gets an id that names its own order.
    """
    if not reports:
        return {}
    recorded = await queries.executions(venue, [report.exec_id for report in reports])
    reused = {
        number: qualified(report)
        for number, report in enumerate(reports)
        if report.exec_id in recorded and not _is_same_order(recorded[report.exec_id], report, states)
    }
    if reused:
        recorded = {**recorded, **await queries.executions(venue, [report.exec_id for report in reused.values()])}
    named = {number: reused.get(number, report) for number, report in enumerate(reports)}
    return {number: report for number, report in named.items() if not _is_repeat(recorded, report, states)}


def _is_same_order(execution: Execution, report: ExecutionReport, states: States) -> bool:
    if not execution.order_id:
        return execution.stray_client_order_id in (report.venue_client_order_id, report.leg_client_order_id)
    state = states.get(report.venue_client_order_id)
    return state is not None and state.order.order_id == execution.order_id


def _is_repeat(recorded: Mapping[str, Execution], report: ExecutionReport, states: States) -> bool:
    execution = recorded.get(report.exec_id)
    if execution is None:
        return False
    # A stray's report whose order exists now is applied to it.
    return bool(execution.order_id) or report.venue_client_order_id not in states
