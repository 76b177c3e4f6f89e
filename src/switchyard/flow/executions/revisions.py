"""Corrections and busts: a venue takes an earlier execution back, wholly or in part.

Records them for the books. The order and the gateway's position stay, because the order may have ended with them.
"""

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from switchyard.domain import decisions
from switchyard.domain.changes import Committed
from switchyard.domain.errors import GroupRejected
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState
from switchyard.domain.reports import ExecutionReport
from switchyard.flow.decide import Commit
from switchyard.flow.executions.strays import Strays
from switchyard.ports.queries import Queries
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()


class Revisions:
    """Records the revisions of one venue."""

    def __init__(self, venue: VenueName, *, queries: Queries, commit: Commit, metrics: Metrics, strays: Strays) -> None:
        self._venue = venue
        self._queries = queries
        self._commit = commit
        self._metrics = metrics
        self._strays = strays

    async def file(self, reports: Sequence[ExecutionReport], states: Mapping[VenueClientOrderId, OrderState]) -> None:
        """Record revisions of executions of known orders, also of one that has not come yet: the books wait for it.

        It comes after the executions of its page were applied. One that names no execution, or one of another order, is
        set aside.
        """
        if not reports:
            return
        named = [name for report in reports for name in (report.exec_id, report.ref_exec_id) if name is not None]
        recorded = await self._queries.executions(self._venue, named)
        new: list[tuple[Order, ExecutionReport]] = []
        for report in reports:
            order = states[report.venue_client_order_id].order
            referred = None if report.ref_exec_id is None else recorded.get(report.ref_exec_id)
            if report.ref_exec_id is None:
                await self._strays.set_aside(report, f"{report.exec_type} without refExecId", is_stray=False)
            elif referred is not None and referred.order_id != order.order_id:
                error = f"{report.exec_type} of the execution {report.ref_exec_id}, which is one of another order"
                await self._strays.set_aside(report, error, is_stray=False)
            elif (known := recorded.get(report.exec_id)) is None:
                new.append((order, report))
            elif known.order_id != order.order_id:
                await self._strays.set_aside(report, "its execution id is that of another order", is_stray=False)
        # Together, so that they share commits; the sequencer keeps their order.
        await asyncio.gather(*(self._record(order, report) for order, report in new))

    async def _record(self, order: Order, report: ExecutionReport) -> None:
        try:
            outcome = await self._commit(decisions.revised_execution(order, report))
        except GroupRejected as error:
            await self._strays.set_aside(report, str(error), is_stray=False)
            return
        if isinstance(outcome, Committed):
            self._metrics.reports.labels("revised").inc()
            log.error(
                "execution_revised",
                venue=self._venue,
                order_id=order.order_id,
                exec_type=report.exec_type,
                exec_id=report.exec_id,
                ref_exec_id=report.ref_exec_id,
            )
