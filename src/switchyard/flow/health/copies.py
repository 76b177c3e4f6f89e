"""Watches one venue for signs that a second installation sends orders from a copy of this database.

Both give an order the same client order id, with the tag of the installation, so each reads the other's executions as
its own. Judges reports and answers on the orders of this database; trades that a person makes in the same account have
no such id. Closes the venue for sending on evidence, and stores a mark with which it stays
closed after a restart and in every other worker, until an operator opens a new epoch (`db restored`, `db newest`).
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, Literal, get_args

import structlog

from switchyard.domain.ids import OrderId, VenueName
from switchyard.domain.journal.changes import Change, Cursor
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxRow
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.values import ZERO
from switchyard.flow.clock import Wake
from switchyard.flow.commit.sequencer import Commit
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.venue import Accepted, VenueOrder
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

Evidence = Literal[
    "never_sent",  # a report on an order that no attempt was made for
    "before_acceptance",  # the venue dates the order or a fill before its acceptance here
    "overfilled",  # more was executed than ordered
    "already_processed",  # the answer to the first attempt; a proxy that repeats requests causes it too
]
# The venue's time is measured to a second (a `Date` header), its round trip may take another one, and its matching
# engine may have a clock of its own.
TIME_MARGIN: Final = timedelta(seconds=5)
# How soon the other workers of a database follow one that has closed the venue.
LOOK_SECONDS: Final = 1.0

_WHY: Final[dict[str, str]] = {
    "never_sent": "the venue has executed order {}, which was never sent from here",
    "before_acceptance": "the venue had order {} before it was accepted here",
    "overfilled": "the venue has executed more of order {} than was ordered",
}


class CopyWatch:
    """Judges the reports and answers of one venue; `lock` closes it for sending."""

    def __init__(
        self,
        venue: VenueName,
        *,
        journal: Journal,
        commit: Commit,
        clock: Clock,
        metrics: Metrics,
        lock: Callable[[str], None],
        clock_offset: Callable[[], timedelta | None] | None,
        explained_until: datetime | None = None,
    ) -> None:
        """`clock_offset`: None for a venue whose times are not compared.

        `explained_until`: orders accepted up to then may be repeats of orders that a restore has lost.
        """
        self._venue = venue
        self._journal = journal
        self._commit = commit
        self._metrics = metrics
        self._lock = lock
        self._clock_offset = clock_offset
        self._explained_until = explained_until
        self._started_at = clock.now()
        self._found: tuple[Evidence, OrderId] | None = None
        self._wake = Wake()
        for evidence in get_args(Evidence):
            metrics.copy_evidence.labels(venue, evidence)  # an alert needs to see the first increase from 0

    def note_report(self, before: OrderState, row: OutboxRow | None, order: Order, report: ExecutionReport) -> None:
        """Judge a report that was applied: the order's state and its own row before it, and the order after it."""
        if not self._concerns(order):
            return
        if row is None or not row.attempt:
            self._close("never_sent", order)
        elif self._is_before_acceptance(order, report.at):
            self._close("before_acceptance", order)
        elif order.filled_qty > max(order.qty, before.order.amend_qty or ZERO):
            self._close("overfilled", order)

    def note_answer(self, order: Order, row: OutboxRow, answer: Accepted) -> None:
        """Judge the answer to an attempt; 'already processed' alone only raises an alarm."""
        if row.kind != "new" or not self._concerns(order):
            return
        if self._is_before_acceptance(order, answer.accepted_at):
            self._close("before_acceptance", order)
        elif answer.already_processed and row.attempt == 1:
            self._metrics.copy_evidence.labels(self._venue, "already_processed").inc()
            log.error("order_already_processed", venue=self._venue, order_id=order.order_id)

    def note_found(self, order: Order, found: VenueOrder) -> None:
        """Judge an order that a lookup has found."""
        if self._concerns(order) and self._is_before_acceptance(order, found.accepted_at):
            self._close("before_acceptance", order)

    async def look(self) -> None:
        """Close the venue if this process or another one has found evidence since the epoch was opened."""
        name, epoch = f"copy:{self._venue}", (await self._journal.head(0)).epoch
        mark = await self._journal.cursor(name)
        if mark is not None and mark.epoch == epoch:
            evidence, _, order_id = mark.hash.partition(" ")
            self._lock(_reason(evidence, order_id))
        elif self._found is not None:
            await self._commit(Change(cursors=(Cursor(name=name, epoch=epoch, seq=0, hash=" ".join(self._found)),)))

    async def run(self) -> None:
        """Look for as long as the process lives, and at once when there is evidence."""
        while True:
            await self._wake.wait(LOOK_SECONDS)
            await self.look()

    def _concerns(self, order: Order) -> bool:
        """Whether only this installation sends the order: no restore explains another sender."""
        return self._explained_until is None or order.accepted_at > self._explained_until

    def _is_before_acceptance(self, order: Order, at: datetime | None) -> bool:
        """Whether a time of the venue's is certainly before the order was accepted here.

        Only for orders that were accepted since this process started: a start may set another time.
        """
        if at is None or self._clock_offset is None or order.accepted_at < self._started_at:
            return False
        offset = self._clock_offset()
        if at.tzinfo is None or offset is None:
            return False
        return at < order.accepted_at + offset - TIME_MARGIN

    def _close(self, evidence: Evidence, order: Order) -> None:
        self._metrics.copy_evidence.labels(self._venue, evidence).inc()
        log.critical("copy_suspected", venue=self._venue, order_id=order.order_id, evidence=evidence)
        self._lock(_reason(evidence, order.order_id))
        if self._found is None:
            self._found = (evidence, order.order_id)
            self._wake.notify()


def _reason(evidence: str, order_id: str) -> str:
    why = _WHY.get(evidence, f"{evidence}: {{}}").format(order_id)
    return (
        f"{why}: a second installation may be running on a copy of this database. Find and stop it, then stop this "
        "process and run `switchyard db restored`"
    )
