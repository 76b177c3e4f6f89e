"""Cancels the open orders of active kills, page by page, for as long as a kill is active.

Reads the orders of the kills; proposes cancels to the sequencer. The dispatcher sends them as it sends every cancel. A
venue that can cancel all orders at once is asked to first, where the kill covers all of them.
"""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from switchyard.domain import decisions
from switchyard.domain.ids import KillId, OrderId, VenueName
from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.outbox import MayBeLost, OrderState, never_lost
from switchyard.domain.risk.kills import Kill
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.commit.groups import Decided, Decision, Failed, Positions
from switchyard.flow.commit.sequencer import Sequencer, decide_all
from switchyard.ports.clock import Clock
from switchyard.ports.queries import Kills
from switchyard.ports.venue import MassCancel, VenueUnavailable
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

PAGE = 200
# A pass looks again at orders that were in doubt or being sent; without progress it comes less often.
PAUSE_SECONDS = 0.2
PAUSE_SECONDS_MAX = 5.0
# The reports of a mass cancel come within moments; what is still open then is cancelled order by order.
MASS_CANCEL_SECONDS = 2.0


class KillCancels:
    """Requests a cancel of every open order that an active kill covers; several workers may do so at once."""

    def __init__(
        self,
        *,
        kills: Kills,
        active: ActiveKills,
        sequencer: Sequencer,
        clock: Clock,
        metrics: Metrics,
        mass_cancels: Callable[[], Mapping[VenueName, MassCancel]] = dict,
        may_be_lost: MayBeLost = never_lost,
    ) -> None:
        """`mass_cancels`: the venues of this process that can cancel all orders at once."""
        self._may_be_lost = may_be_lost
        self._kills = kills
        self._active = active
        self._sequencer = sequencer
        self._clock = clock
        self._metrics = metrics
        self._mass_cancels = mass_cancels
        self._cancelled_all: dict[tuple[KillId, VenueName], float] = {}
        """Until when the reports of a mass cancel are awaited, on the monotonic clock; 0 where it failed."""

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
        kills = await self._active.refresh()
        active = {kill.kill_id for kill in kills}
        self._cancelled_all = {key: end for key, end in self._cancelled_all.items() if key[0] in active}
        for kill in kills:
            await asyncio.gather(*(self._cancel_all(kill, venue) for venue in self._mass_cancels().values()))
            count += await self._cancel(kill)
        return count

    async def _cancel_all(self, kill: Kill, venue: MassCancel) -> None:
        """Ask the venue once, if every order that it would cancel is covered."""
        key = (kill.kill_id, venue.name)
        if key in self._cancelled_all or not kill.covers_scope(None, None, venue.name, None):
            return
        self._cancelled_all[key] = 0.0
        if not await self._kills.orders_of(kill.kill_id, only_open=True, limit=1):
            return
        try:
            await venue.cancel_all()
        except VenueUnavailable as error:
            log.warning("mass_cancel_failed", kill_id=kill.kill_id, venue=venue.name, error=str(error))
            return
        self._cancelled_all[key] = self._clock.monotonic() + MASS_CANCEL_SECONDS
        log.warning("mass_cancel_sent", kill_id=kill.kill_id, venue=venue.name)

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
            self._metrics.kills.cancels.inc(cancelled)
            count += cancelled
        if count:
            log.warning("kill_cancels_requested", kill_id=kill.kill_id, orders=count)
        return count

    def _proposal(self, order_id: OrderId, kill: Kill) -> Decision:
        def decision(newest: OrderState, _: Positions) -> Change | None:
            awaited_until = self._cancelled_all.get((kill.kill_id, newest.order.venue), 0.0)
            if newest.order.status != "ACCEPTED" and self._clock.monotonic() < awaited_until:
                return None
            return decisions.cancel_killed(newest, kill, self._clock.now(), self._may_be_lost)

        return Decision(order_id, decision)
