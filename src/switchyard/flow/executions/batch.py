"""Which reports are applied together, and which rows they need. Pure functions of the recorder."""

from collections.abc import Iterable, Mapping, Sequence

from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.lifecycle import is_final
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState
from switchyard.domain.positions import ACCOUNT_TOTAL, PositionKey
from switchyard.domain.reports import ExecutionReport


def is_known_end(report: ExecutionReport, order: Order) -> bool:
    """Whether the report only repeats an end that is recorded already."""
    return not report.last_qty and is_final(order.status) and order.status == report.status


def position_keys(
    reports: Iterable[ExecutionReport], states: Mapping[VenueClientOrderId, OrderState]
) -> list[PositionKey]:
    """The positions that these reports may move, and the results of their accounts."""
    orders = [states[report.venue_client_order_id].order for report in reports]
    keys = [key for order in orders for key in ((order.account_id, order.symbol), (order.account_id, ACCOUNT_TOTAL))]
    return list(dict.fromkeys(keys))


def one_change(reports: Sequence[ExecutionReport]) -> Sequence[ExecutionReport]:
    """The first reports that fit into one change, which may write each order and each execution once."""
    seen: set[str] = set()
    for number, report in enumerate(reports):
        if seen & {report.venue_client_order_id, report.exec_id}:
            return reports[:number]
        seen |= {report.venue_client_order_id, report.exec_id}
    return reports
