"""Failover: orders of which no byte was sent leave a venue whose circuit breaker is open.

Reads the outbox; proposes reroutes to the sequencer. The dispatcher calls it between two claims and sends the orders
from their new venue. An order in doubt never moves: only its own venue can tell what became of it.
"""

from collections.abc import Collection, Container
from typing import NamedTuple

import structlog

from switchyard.domain import decisions
from switchyard.domain.ids import VenueName
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.commit.groups import Decided, Decision, Failed, Positions
from switchyard.flow.commit.sequencer import Propose, decide_all
from switchyard.flow.health.venues import HealthBoard, VenueChoice
from switchyard.flow.sending.lanes import HeldLanes
from switchyard.flow.sending.lost_keys import LostKeys
from switchyard.ports.clock import Clock
from switchyard.ports.outbox import Due, OutboxQueries
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

PAGE = 500


class Move(NamedTuple):
    """An order that is to leave its venue."""

    due: Due
    to: VenueName
    reason: str


class Failover:
    """Moves the orders of one worker's lanes."""

    def __init__(
        self,
        *,
        choice: VenueChoice | None,
        health: HealthBoard,
        queries: OutboxQueries,
        lanes: HeldLanes,
        kills: ActiveKills,
        lost_keys: LostKeys | None,
        propose: Propose,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        """`choice`: none where every symbol has one venue."""
        self._choice = choice
        self._health = health
        self._queries = queries
        self._lanes = lanes
        self._kills = kills
        self._lost_keys = lost_keys
        self._propose = propose
        self._clock = clock
        self._metrics = metrics
        self._after = 0
        """The journal number behind which the next page begins: orders that cannot move do not hide those behind."""

    def can_move(self, order: Order, sendable: Container[VenueName]) -> bool:
        """Whether the order, if it is proven unsent, leaves its venue at once."""
        return order.venue in self._health.blocked and self._target(order, sendable) is not None

    async def find(self, locked: Collection[VenueName], sendable: Collection[VenueName]) -> list[Move]:
        """The next orders that leave their venue, in journal order; `sendable` are the venues that can take them.

        A venue is locked where it has an order of ours that this database does not know: the database may be old.
        """
        left = sorted(self._health.blocked.difference(locked))
        blocked = [venue for venue in left if self._choice is not None and self._choice.may_leave(venue)]
        lanes = self._lanes.filter()
        if not blocked or not sendable or lanes == []:
            self._after = 0
            return []
        page = await self._queries.never_sent(blocked, lanes, PAGE, after=self._after)
        self._after = page[-1].row.seq if len(page) == PAGE else 0
        return [move for due in page if (move := self._move_of(due, sendable)) is not None]

    async def cancels(self, open_venues: Collection[VenueName], limit: int) -> list[Due]:
        """The cancels that are due at venues which get no orders only because their reports cannot be read."""
        venues, lanes = sorted(self._health.unheard.intersection(open_venues)), self._lanes.filter()
        if not venues or limit <= 0 or lanes == []:
            return []
        return await self._queries.due(self._clock.now(), limit, venues, lanes, kind="cancel")

    async def move(self, moves: Collection[Move]) -> int:
        """Give each order to its new venue, unless it has changed meanwhile; returns how many moved."""
        answers = await decide_all(self._propose, [self._proposal(move) for move in moves])
        moved = 0
        for (due, to, reason), answer in zip(moves, answers, strict=True):
            match answer:
                case Decided(before, _):
                    moved += 1
                    self._metrics.routing.failovers.labels(before.order.venue, to).inc()
                    log.warning(
                        "order_rerouted",
                        order_id=due.row.order_id,
                        trace_id=due.state.order.trace_id,
                        from_venue=before.order.venue,
                        to_venue=to,
                        reason=reason,
                    )
                case Failed(error):
                    raise error
        return moved

    def _move_of(self, due: Due, sendable: Container[VenueName]) -> Move | None:
        order = due.state.order
        if due.reported_before or not decisions.may_move(due.state):
            return None
        if self._lost_keys is not None and self._lost_keys.history.may_have_placed(order):
            return None
        to = self._target(order, sendable)
        reason = self._health.reason(order.venue)
        return None if to is None or reason is None else Move(due, to, reason)

    def _target(self, order: Order, sendable: Container[VenueName]) -> VenueName | None:
        def problem(venue: VenueName) -> str | None:
            if venue not in sendable:
                return "no orders are sent to it"
            return None if self._kills.covering_at(order, venue) is None else "a kill covers it"

        if self._choice is None or self._kills.covering(order) is not None:
            return None
        return self._choice.instead_of(order, problem)

    def _proposal(self, move: Move) -> Decision:
        def decision(newest: OrderState, _: Positions) -> Change | None:
            order = newest.order
            if order.venue != move.due.row.venue or not decisions.may_move(newest):
                return None
            if self._kills.covering(order) is not None or self._kills.covering_at(order, move.to) is not None:
                return None  # it ends, or waits for another venue
            return decisions.reroute(newest, move.to, move.reason, self._clock.now())

        return Decision(move.due.row.order_id, decision)
