"""Begins the first attempt of an order in the commit that accepts it.

Only where nothing of its lane waits, this worker owns the lane, and the venue is open and has a free slot. The append
judges the lane and the venue's reports again; a change that it rejects for them is committed without the attempt. Calls
no venue itself: committed attempts go to `Sends`, as those of the dispatcher do.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from switchyard.domain import decisions
from switchyard.domain.ids import OrderId, VenueName, WorkerId
from switchyard.domain.journal.changes import Change, Committed, Outcome, merged
from switchyard.domain.orders.outbox import OrderState, OutboxRow
from switchyard.flow.commit.states import accepted_state
from switchyard.flow.sending.lanes import HeldLanes
from switchyard.flow.sending.lost_keys import LostKeys
from switchyard.flow.sending.sends import Send, Sends, line_of
from switchyard.flow.sending.waiting import WaitingLanes
from switchyard.ports.clock import Clock


class InlineFirstSend:
    """flow.commit.sequencer.FirstAttempts of one worker."""

    def __init__(
        self,
        *,
        worker: WorkerId,
        sends: Sends,
        lanes: HeldLanes,
        waiting: WaitingLanes,
        sendable: Callable[[], Collection[VenueName]],
        lost_keys: LostKeys | None,
        clock: Clock,
    ) -> None:
        self._worker = worker
        self._sends = sends
        self._lanes = lanes
        self._waiting = waiting
        self._sendable = sendable
        self._lost_keys = lost_keys
        self._clock = clock
        self._is_on = False
        self._begun_at: dict[OrderId, float] = {}
        """When each attempt that is being committed began, on the monotonic clock."""

    def start(self) -> None:
        """Begin attempts from now on: the worker's name is known to be alive."""
        self._is_on = True

    def stop(self) -> None:
        """Begin no more attempts."""
        self._is_on = False

    def begin(self, changes: Sequence[tuple[Change, bool]]) -> list[Change | None]:
        """For each change of a group the change with its first attempt; none where no attempt begins with it."""
        begun: list[Change | None] = [None] * len(changes)
        if not self._is_on or not any(may_begin for _, may_begin in changes):
            return begun
        free = self._sends.free_by_venue(self._sendable())
        slots, usable = self._sends.free, self._lanes.usable()
        now, begun_at = self._clock.now(), self._clock.monotonic()
        queued: set[int] = set()
        for place, (change, may_begin) in enumerate(changes):
            if len(change.outbox) != 1 or len(change.orders) != 1:
                continue
            [row] = change.outbox
            if row.version != 1 or row.kind != "new" or row.status != "queued":
                continue  # not a new order
            may_begin = may_begin and slots > 0 and free.get(row.venue, 0) > 0
            may_begin = may_begin and row.lane in usable and row.lane not in self._waiting and row.lane not in queued
            may_begin = may_begin and not self._sends.must_wait(line_of(change.orders[0]), row.lane)
            if not may_begin or not self._may_send(change, row, now):
                queued.add(row.lane)  # those behind it in this group must not pass it
                continue
            state = OrderState(order=change.orders[0], outbox=(row,))
            begun[place] = merged([change, decisions.begin_attempt(state, row, self._worker, now)])
            # Before the commit: recovery takes an attempt that it does not find here for one of a dead worker.
            self._sends.register(row)
            self._begun_at[row.order_id] = begun_at
            free[row.venue] -= 1
            slots -= 1
        return begun

    def settle(self, begun: Sequence[tuple[Change, Outcome]]) -> None:
        """Send the attempts that are committed, in journal order, and give up those that conflicted."""
        sends = []
        for change, outcome in begun:
            row = change.outbox[-1]
            begun_at = self._begun_at.pop(row.order_id)
            if isinstance(outcome, Committed):
                state = accepted_state(change.orders[-1], change, outcome)
                sends.append(Send(state.outbox[0], state, begun_at, row.key))
                continue
            self._sends.release(row)
            if outcome.is_of_rows:
                self._waiting.add(row.lane)
        self._sends.start(sends)

    def abandon(self, begun: Sequence[Change], *, may_be_committed: bool) -> None:
        """Give up attempts that were not committed, or of which that is not known: none of them was sent."""
        for change in begun:
            row = change.outbox[-1]
            del self._begun_at[row.order_id]
            self._sends.release(row, never_left=may_be_committed)
        if may_be_committed:
            self._waiting.wake()

    def _may_send(self, change: Change, row: OutboxRow, now: datetime) -> bool:
        order = change.orders[0]
        if decisions.is_past_deadline(order, now):
            return False
        return self._lost_keys is None or not self._lost_keys.must_ask(order, row)
