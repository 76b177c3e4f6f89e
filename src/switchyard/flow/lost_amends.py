"""Amends that a restored database has lost: records them from what the venue shows of their orders.

After a restore, an order may have been amended by the history that was lost: the venue has other amounts, or another
order in its place. The end of the order that is known here is then not the end of the order. Reads orders and writes
the amends through `Commit`; its callers ask the venue.
"""

from collections.abc import Callable
from decimal import Decimal

import structlog

from switchyard.domain import decisions
from switchyard.domain.amends import amend_rows
from switchyard.domain.changes import Change
from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.lifecycle import is_final
from switchyard.domain.outbox import SETTLED, OrderState
from switchyard.domain.reports import ExecutionReport
from switchyard.flow.decide import Commit, decide
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.venue import VenueAmend, VenueOrder

log = structlog.get_logger()


class LostAmends:
    """Finds and records the amends that the last restore has lost."""

    def __init__(
        self,
        *,
        restored_seq: int | None,
        is_ours: Callable[[VenueClientOrderId], bool],
        journal: Journal,
        commit: Commit,
        clock: Clock,
    ) -> None:
        """`restored_seq`: the first number after the last restore, none if there was none."""
        self.is_restored = restored_seq is not None
        self._restored_seq = restored_seq or 0
        self._is_ours = is_ours
        self._journal = journal
        self._commit = commit
        self._clock = clock

    def must_ask(self, state: OrderState, report: ExecutionReport, filled: Decimal) -> bool:
        """Whether the venue must be asked before the report is applied, because it may wrongly end the order.

        `filled` is the filled quantity with the report. An order that the venue calls filled at the quantity that is
        known here was not replaced.
        """
        if is_final(state.order.status) or not self._may_lack(state):
            return False
        if report.status in ("CANCELED", "REJECTED", "EXPIRED"):
            return True
        qty = state.order.qty
        return filled > qty or (filled == qty and report.status != "FILLED")

    async def adopt(self, state: OrderState, found: VenueOrder) -> bool:
        """Record the amends of the order that the venue shows and that are not settled here; returns whether any was.

        Those of another system are left alone: a lost amend has an id of this installation.
        """
        if not self.is_restored:
            return False
        # An order of after the restore may repeat the key of a lost one; its own amends are settled by their sender.
        is_newer = not self._may_lack(state)
        known = {row.venue_client_order_id for row in amend_rows(state) if is_newer or row.status in SETTLED}
        lost = [amend for amend in found.amends if amend.client_order_id not in known]
        adopted = False
        for amend in lost:
            adopted |= await self._adopt(state, found, amend)
        return adopted

    async def _adopt(self, state: OrderState, found: VenueOrder, amend: VenueAmend) -> bool:
        order, client_id = state.order, amend.client_order_id
        owner = (await self._journal.load_by_client_order_id([client_id])).get(client_id)
        if not self._is_ours(client_id) or (owner is not None and owner.order.order_id != order.order_id):
            log.error("amend_unknown", venue=order.venue, order_id=order.order_id, amend_id=client_id)
            return False

        def decision(newest: OrderState) -> Change | None:
            return decisions.adopt_amend(
                newest,
                client_id,
                self._clock.now(),
                replaces=amend.replaces,
                qty=amend.qty,
                price=amend.price,
                stop_price=amend.stop_price,
                venue_order_id=found.venue_order_id,
            )

        change = await decide(self._journal, self._commit, order.order_id, decision)
        if change is None:
            return False
        log.warning(
            "amend_adopted",
            venue=order.venue,
            order_id=order.order_id,
            amend_id=client_id,
            qty=str(change.orders[-1].qty),
        )
        return True

    def _may_lack(self, state: OrderState) -> bool:
        """Whether the order is of before the restore, or was at the venue before it was sent from here."""
        row = state.find("new", 1)
        if row is None or not self.is_restored:
            return False
        return row.seq < self._restored_seq or not row.attempt or row.last_error == "CONFLICT_PROCESSED"
