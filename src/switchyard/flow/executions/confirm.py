"""Ends after a restore: a report that ends an order of before the restore is applied only after a lookup.

The lost history may have amended the order: the venue then has other amounts, or another order in its place, and what
ends is not the order. Asks the venue; records the amends that it shows; keeps the reports for which it cannot be asked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog

from switchyard.domain.ids import OrderId, VenueClientOrderId
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reports import ExecutionReport, revises_execution
from switchyard.domain.values import EXACT
from switchyard.flow.executions.gate import VenueGate
from switchyard.flow.executions.identify import unstorable_field
from switchyard.flow.lost_amends import LostAmends
from switchyard.ports.journal import Journal
from switchyard.ports.venue import Venue, VenueUnavailable

log = structlog.get_logger()

# Lookups at the same time, as of a sweep.
LOOKUPS_MAX = 8
# Reports that wait for a lookup. Beyond this number their page is read again later.
WAITING_MAX = 10_000

States = Mapping[VenueClientOrderId, OrderState]
LoadStates = Callable[[Sequence[ExecutionReport]], Awaitable[tuple[Sequence[ExecutionReport], States]]]
"""Returns the reports, each under its order's own id, and the orders by these ids."""


class ConfirmedEnds:
    """Confirms the ends that one venue reports."""

    def __init__(
        self, venue: Venue, amends: LostAmends, gate: VenueGate, journal: Journal, load_states: LoadStates
    ) -> None:
        self._venue = venue
        self._journal = journal
        self._amends = amends
        self._gate = gate
        self._load_states = load_states
        self._waiting: list[ExecutionReport] = []

    @property
    def is_waiting(self) -> bool:
        """Whether reports wait until the venue can be asked about their orders."""
        return bool(self._waiting)

    def take_waiting(self) -> list[ExecutionReport]:
        """The reports that wait, to be applied again."""
        waiting, self._waiting = self._waiting, []
        return waiting

    async def of(self, reports: Sequence[ExecutionReport]) -> Sequence[ExecutionReport]:
        """The reports that may be applied now; the others wait. Raises VenueUnavailable where too many do."""
        if not self._amends.is_restored or self._venue.capabilities.lookup == "none":
            return reports
        named, states = await self._load_states(reports)
        doubtful = self._doubtful(named, states)
        # By the id that has ended: from there on the venue shows every amend, also those before one known here.
        legs = {
            named[place].venue_client_order_id: named[place].leg_client_order_id or named[place].venue_client_order_id
            for place in reversed(doubtful)
        }
        unasked = await self._ask(legs, states)
        waiting = [place for place in doubtful if named[place].venue_client_order_id in unasked]
        if len(self._waiting) + len(waiting) > WAITING_MAX:
            raise VenueUnavailable(
                f"{self._venue.name}: too many reports wait until it can be asked about their orders"
            )
        self._waiting += [reports[place] for place in waiting]
        self._gate.note_waiting(len(self._waiting))
        return [report for place, report in enumerate(reports) if place not in waiting] if waiting else reports

    def _doubtful(self, reports: Sequence[ExecutionReport], states: States) -> list[int]:
        """The places of the reports that may end an order which is not the same at the venue."""
        filled = {client_id: state.order.filled_qty for client_id, state in states.items()}
        doubtful = []
        for place, report in enumerate(reports):
            client_id = report.venue_client_order_id
            if client_id not in states or revises_execution(report) or unstorable_field(report) is not None:
                continue
            filled[client_id] = EXACT.add(filled[client_id], report.last_qty)
            if self._amends.must_ask(states[client_id], report, filled[client_id]):
                doubtful.append(place)
        return doubtful

    async def _ask(
        self, legs: Mapping[VenueClientOrderId, VenueClientOrderId], states: States
    ) -> set[VenueClientOrderId]:
        """Ask about these orders and record their lost amends; returns those of which not all is known yet."""
        unasked = sorted(legs)
        while unasked:
            asked = unasked[:LOOKUPS_MAX]
            errors = await asyncio.gather(
                *(self._ask_one(states[client_id].order.order_id, legs[client_id]) for client_id in asked)
            )
            failed = [client_id for client_id, error in zip(asked, errors, strict=True) if error is not None]
            unasked = failed + unasked[LOOKUPS_MAX:]
            if failed:
                error = str(next(filter(None, errors)))
                log.warning("report_waits", venue=self._venue.name, orders=len(unasked), error=error)
                break
        return set(unasked)

    async def _ask_one(self, order_id: OrderId, leg: VenueClientOrderId) -> VenueUnavailable | None:
        # From the journal: another process may have changed the order since it was last read here.
        state = (await self._journal.load([order_id]))[order_id]
        try:
            found = await self._venue.find_by_client_order_id(leg)
        except VenueUnavailable as error:
            return error
        if found is None and self._venue.capabilities.lookup == "all":
            # It shows ended orders too, so it contradicts its own report: what became of the order is not known yet.
            return VenueUnavailable(f"{self._venue.name} reports on {order_id} and does not show it")
        if found is None:
            return None
        if found.side not in (None, state.order.side):
            # A repeated close, decided by another position than the lost one.
            return VenueUnavailable(f"{self._venue.name} has {order_id} as an order to {found.side}")
        if not await self._amends.adopt(state, found):
            return VenueUnavailable(f"an amend of {order_id} that {self._venue.name} shows is being sent")
        return None
