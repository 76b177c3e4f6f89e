"""Strays: reports on orders, and open orders, that are not in this database; and reports that must be set aside.

Records them, so that an order that is accepted later under the same client order id is not sent. Closes the venue for
sending where such an order carries this installation's tag: this database may then be older than what was sent.
"""

from collections.abc import Callable, Iterable

import msgspec
import structlog

from switchyard.domain import decisions
from switchyard.domain.errors import GroupRejected
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.journal.changes import Committed
from switchyard.domain.orders.reports import ExecutionReport, is_storable, qualified
from switchyard.flow.commit.sequencer import Commit
from switchyard.flow.executions.gate import VenueGate
from switchyard.ports.journal import RESTORED, Journal
from switchyard.ports.queries import Queries
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

IsOurs = Callable[[VenueClientOrderId], bool]


def is_never_ours(_client_id: VenueClientOrderId) -> bool:
    """The predicate of an installation without a tag."""
    return False


class Strays:
    """Records the strays of one venue."""

    def __init__(
        self,
        venue: VenueName,
        *,
        journal: Journal,
        queries: Queries,
        commit: Commit,
        metrics: Metrics,
        gate: VenueGate,
        is_ours: IsOurs,
    ) -> None:
        self._venue = venue
        self._journal = journal
        self._queries = queries
        self._commit = commit
        self._metrics = metrics
        self._gate = gate
        self._is_ours = is_ours

    async def file(self, report: ExecutionReport) -> bool:
        """Record a report on an unknown order; returns whether it is new."""
        try:
            return await self._file(report)
        except GroupRejected as error:
            await self.set_aside(report, str(error), is_stray=True)
            return True

    async def set_aside(self, report: ExecutionReport, error: str, *, is_stray: bool) -> None:
        """Record a report that cannot be stored; its order's id is kept where the order is unknown."""
        client_id = report.venue_client_order_id
        stray = client_id if is_stray and is_storable(client_id) else None
        await self.set_aside_text(_text(report), error, stray)

    async def set_aside_text(self, text: str, error: str, stray: VenueClientOrderId | None = None) -> None:
        """Record a report's text; a report that was set aside before is not recorded again."""
        change = decisions.set_aside_report(self._venue, text, error, stray)
        if isinstance(await self._commit(change), Committed):
            self._metrics.reports.labels("set_aside").inc()
            log.error("report_set_aside", venue=self._venue, error=error, text=ascii(text[:500]))

    async def lock_if_ours(self, client_ids: Iterable[VenueClientOrderId]) -> bool:
        """Close the venue if one of these unknown orders is this installation's and no restore explains it.

        Returns whether the venue was closed because of them.
        """
        ours = [client_id for client_id in client_ids if self._is_ours(client_id)]
        if not ours or await self._journal.cursor(RESTORED) is not None:
            return False
        self._gate.lock(
            f"it has {len(ours)} order(s) of this installation that are not in this database, such as {ours[0]}: "
            "this database may be older than what was sent; restore the newest one, or run `switchyard db restored`"
        )
        return True

    async def _file(self, report: ExecutionReport) -> bool:
        for named in (report, qualified(report)):
            if isinstance(await self._commit(decisions.unmatched_report(named)), Committed):
                if named is not report:
                    note_reused_id(self._metrics, named)
                self._metrics.reports.labels("unmatched").inc()
                log.error(
                    "report_unmatched",
                    venue=report.venue,
                    exec_id=named.exec_id,
                    client_order_id=report.venue_client_order_id,
                )
                return True
            recorded = (await self._queries.executions(self._venue, [named.exec_id])).get(named.exec_id)
            if recorded is not None and recorded.stray_client_order_id == report.venue_client_order_id:
                return False
        return False


def note_reused_id(metrics: Metrics, report: ExecutionReport) -> None:
    """Count and log an execution id that the venue had used for another order."""
    metrics.reused_execution_ids.inc()
    log.error(
        "execution_id_reused",
        venue=report.venue,
        recorded_as=report.exec_id,
        client_order_id=report.venue_client_order_id,
    )


def _text(report: ExecutionReport) -> str:
    """The report's members, readable also where JSON cannot encode them."""
    return repr(msgspec.structs.asdict(report))
