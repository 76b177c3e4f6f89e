"""Amends that a restored database has lost: records them from what the venue shows of their orders.

After a restore, an order may have been amended by the history that was lost: the venue has other amounts, or another
order in its place. The end of the order that is known here is then not the end of the order. Reads orders and writes
the amends through `Commit`; its callers ask the venue.
"""

from collections.abc import Callable, Set
from decimal import Decimal
from functools import partial

import structlog

from switchyard.domain import decisions
from switchyard.domain.amends import amend_rows, last_id
from switchyard.domain.changes import Change
from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.lifecycle import is_final
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OrderState
from switchyard.domain.reports import ExecutionReport
from switchyard.flow.commit.sequencer import Commit, decide
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
        """Record the amends of the order that the venue shows and that are not recorded here; returns whether any was.

        `state` was read before the venue was asked. The amends are recorded in the venue's order; one that precedes the
        last one recorded here changes no amounts. Those of another system are left alone: a lost amend has an id of
        this installation.
        """
        if not self.is_restored:
            return False
        adopted, previous = False, last_id(state)
        for place, amend in enumerate(found.amends):
            if amend.client_order_id in _sent_ids(state):
                previous = amend.client_order_id
                continue
            if not await self._is_own(state.order, amend):
                continue
            later = {other.client_order_id for other in found.amends[place + 1 :]}
            decision = partial(self._decision, amend, found, previous, later)
            change = await decide(self._journal, self._commit, state.order.order_id, decision)
            if change is not None:
                adopted = True
                self._note(change, amend)
            if later.isdisjoint(_sent_ids(state)):
                if change is None:
                    break  # it is being sent, or the order was amended since: the next lookup shows what became of it
                previous = amend.client_order_id
        return adopted

    async def _is_own(self, order: Order, amend: VenueAmend) -> bool:
        client_id = amend.client_order_id
        owner = (await self._journal.load_by_client_order_id([client_id])).get(client_id)
        if self._is_ours(client_id) and (owner is None or owner.order.order_id == order.order_id):
            return True
        log.error("amend_unknown", venue=order.venue, order_id=order.order_id, amend_id=client_id)
        return False

    def _decision(
        self,
        amend: VenueAmend,
        found: VenueOrder,
        previous: VenueClientOrderId,
        later: Set[VenueClientOrderId],
        newest: OrderState,
    ) -> Change | None:
        is_superseded = not later.isdisjoint(_sent_ids(newest))
        if not is_superseded and last_id(newest) != previous:
            return None
        return decisions.adopt_amend(
            newest,
            amend.client_order_id,
            self._clock.now(),
            replaces=amend.replaces,
            qty=amend.qty,
            price=amend.price,
            stop_price=amend.stop_price,
            venue_order_id=found.venue_order_id,
            later=later,
            is_superseded=is_superseded,
        )

    def _note(self, change: Change, amend: VenueAmend) -> None:
        order, amend_id = change.orders[-1], amend.client_order_id
        if change.outbox[0].status == "sent":
            log.warning(
                "amend_adopted", venue=order.venue, order_id=order.order_id, amend_id=amend_id, qty=str(order.qty)
            )
        else:
            log.info("amend_superseded", venue=order.venue, order_id=order.order_id, amend_id=amend_id)

    def _may_lack(self, state: OrderState) -> bool:
        """Whether the order is of before the restore, or was at the venue before it was sent from here."""
        row = state.find("new", 1)
        if row is None or not self.is_restored:
            return False
        return row.seq < self._restored_seq or not row.attempt or row.last_error == "CONFLICT_PROCESSED"


def _sent_ids(state: OrderState) -> set[VenueClientOrderId]:
    """The ids of the amends that are recorded as carried out."""
    return {row.venue_client_order_id for row in amend_rows(state) if row.status == "sent"}
