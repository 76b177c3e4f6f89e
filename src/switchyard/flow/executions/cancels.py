"""Watches acknowledged cancels: while the venue still shows the order open, the cancel is sent again, a few times.

Reads orders from the journal; queues cancels. Used by the sweeper, which knows what the venue shows.
"""

from collections.abc import Iterable

import structlog

from switchyard.domain import decisions
from switchyard.domain.ids import OrderId
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.outbox import OrderState
from switchyard.flow.commit.sequencer import Commit, decide
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# Longer than a venue takes to carry out a cancel that it acknowledged, and to report it.
CANCEL_SECONDS = 5.0
# The account's own cancels count too; after so many an operator has to look.
CANCELS_MAX = 5


class CancelWatch:
    """The acknowledged cancels of one venue's orders that are still open there; several watches may run at once."""

    def __init__(self, *, journal: Journal, commit: Commit, clock: Clock, metrics: Metrics) -> None:
        self._journal = journal
        self._commit = commit
        self._clock = clock
        self._metrics = metrics
        self._seen: dict[OrderId, tuple[int, float]] = {}
        self._alarmed: dict[OrderId, int] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether some order should be looked at again soon."""
        return bool(self._seen)

    async def look(self, open_orders: Iterable[OrderId]) -> int:
        """Look at the orders that wait for a cancel and that the venue shows open; returns how many were repeated."""
        states = await self._journal.load(list(open_orders))
        now = self._clock.monotonic()
        seen, repeated = self._seen, 0
        self._seen = {}
        self._alarmed = {order_id: number for order_id, number in self._alarmed.items() if order_id in states}
        for order_id, state in states.items():
            number = _acknowledged_cancel(state)
            if number is None or self._alarmed.get(order_id) == number:
                continue
            first_number, first_at = seen.get(order_id, (0, now))
            if first_number != number:
                self._seen[order_id] = (number, now)
            elif now - first_at < CANCEL_SECONDS:
                self._seen[order_id] = (number, first_at)
            elif number >= CANCELS_MAX:
                self._alarm(state, number)
            else:
                repeated += await self._repeat(state, number)
        return repeated

    async def _repeat(self, state: OrderState, number: int) -> int:
        def decision(newest: OrderState) -> Change | None:
            return decisions.repeat_cancel(newest, number, self._clock.now())

        if await decide(self._journal, self._commit, state.order.order_id, decision, state) is None:
            return 0
        self._metrics.cancels_repeated.inc()
        log.warning("cancel_repeated", venue=state.order.venue, order_id=state.order.order_id, number=number + 1)
        return 1

    def _alarm(self, state: OrderState, number: int) -> None:
        self._alarmed[state.order.order_id] = number
        self._metrics.cancels_ignored.inc()
        log.error("cancel_not_carried_out", venue=state.order.venue, order_id=state.order.order_id, cancels=number)


def _acknowledged_cancel(state: OrderState) -> int | None:
    """The number of the order's last cancel, if the venue acknowledged it and the order still waits for it."""
    cancels = [row for row in state.outbox if row.kind == "cancel"]
    if state.order.status != "CANCEL_REQUESTED" or not cancels:
        return None
    last = max(cancels, key=lambda row: row.number)
    return last.number if last.status == "sent" else None
