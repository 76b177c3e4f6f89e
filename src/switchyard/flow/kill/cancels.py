"""Cancels the open orders of active kills, page by page, for as long as a kill is active.

Reads the orders of the kills; proposes cancels to the sequencer. The dispatcher sends them as it sends every cancel.
"""

import structlog

from switchyard.domain import decisions
from switchyard.domain.changes import Change
from switchyard.domain.ids import OrderId
from switchyard.domain.kills import Kill
from switchyard.domain.outbox import OrderState
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.decide import decide_all
from switchyard.flow.proposals import Decided, Failed, Positions, Proposal
from switchyard.flow.sequencer import Sequencer
from switchyard.ports.clock import Clock
from switchyard.ports.kills import Kills
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

PAGE = 200
# A pass looks again at orders that were in doubt or being sent; without progress it comes less often.
PAUSE_SECONDS = 0.2
PAUSE_SECONDS_MAX = 5.0


class KillCancels:
    """Requests a cancel of every open order that an active kill covers; several workers may do so at once."""

    def __init__(
        self, *, kills: Kills, active: ActiveKills, sequencer: Sequencer, clock: Clock, metrics: Metrics
    ) -> None:
        self._kills = kills
        self._active = active
        self._sequencer = sequencer
        self._clock = clock
        self._metrics = metrics

    async def run(self) -> None:
        """Cancel for as long as the process lives."""
        pause = PAUSE_SECONDS
        while True:
            is_idle = not await self.run_once()
            pause = min(pause * 2, PAUSE_SECONDS_MAX) if is_idle else PAUSE_SECONDS
            await self._active.changed_within(pause)

    async def run_once(self) -> int:
        """Look once at every open order of every active kill; returns how many were cancelled or ended."""
        count = 0
        for kill in await self._active.refresh():
            count += await self._cancel(kill)
        return count

    async def _cancel(self, kill: Kill) -> int:
        count = 0
        last: OrderId | None = None
        while page := await self._kills.orders_of(kill.kill_id, after=last, only_open=True, limit=PAGE):
            last = page[-1]
            answers = await decide_all(self._sequencer.propose, [self._proposal(order_id, kill) for order_id in page])
            for answer in answers:
                if isinstance(answer, Failed):
                    raise answer.error
            cancelled = sum(isinstance(answer, Decided) for answer in answers)
            self._metrics.kill_cancels.inc(cancelled)
            count += cancelled
        if count:
            log.warning("kill_cancels_requested", kill_id=kill.kill_id, orders=count)
        return count

    def _proposal(self, order_id: OrderId, kill: Kill) -> Proposal:
        def decision(newest: OrderState, _: Positions) -> Change | None:
            return decisions.cancel_killed(newest, kill, self._clock.now())

        return Proposal(order_id, decision)
