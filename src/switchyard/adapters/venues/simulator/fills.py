"""What the faults add to fills: fees, corrections and busts."""

from collections.abc import Iterator
from decimal import Decimal

from msgspec.structs import replace

from switchyard.adapters.venues.paper.matching import PaperOrder
from switchyard.adapters.venues.simulator.faults import FaultPlan
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.values import EXACT, share

BASIS_POINTS = Decimal(10_000)


def with_fees(
    state: PaperOrder, reports: list[ExecutionReport], plan: FaultPlan, catalogue: Catalogue
) -> tuple[PaperOrder, list[ExecutionReport]]:
    """Charge a fee for each new fill, if the faults require it."""
    basis_points = plan.faults.fee_basis_points
    if not basis_points:
        return state, reports
    currency = catalogue.find(state.symbol).quote
    new = {report.exec_id for report in reports}
    fees = {
        fill.exec_id: share(EXACT.multiply(fill.qty, fill.price), Decimal(basis_points), BASIS_POINTS)
        for fill in state.fills
        if fill.exec_id in new
    }
    fills = tuple(
        replace(fill, fee=fees[fill.exec_id], fee_currency=currency) if fill.exec_id in fees else fill
        for fill in state.fills
    )
    return replace(state, fills=fills), [
        replace(report, fee=fees[report.exec_id], fee_currency=currency) if report.exec_id in fees else report
        for report in reports
    ]


def revisions(
    state: PaperOrder, report: ExecutionReport, plan: FaultPlan, catalogue: Catalogue
) -> Iterator[ExecutionReport]:
    """The reports that revise a fill, as the faults require."""
    if not report.last_qty or report.last_price is None:
        return
    referred = replace(report, ref_exec_id=report.exec_id)
    if plan.hits("correct_fills"):
        price = EXACT.add(report.last_price, catalogue.find(state.symbol).tick)
        yield replace(referred, exec_id=f"{report.exec_id}-correct", exec_type="CORRECT", last_price=price)
    if plan.hits("bust_fills"):
        yield replace(referred, exec_id=f"{report.exec_id}-bust", exec_type="CANCEL")
