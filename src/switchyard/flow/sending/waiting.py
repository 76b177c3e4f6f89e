"""Which lanes have orders that wait in the outbox, as far as this process knows. In memory, and only a hint.

A first attempt that begins in the commit of its order would pass those that wait. The append is the judge; this saves
the attempts that it would reject, and the queries that would find nothing.
"""

from collections.abc import Iterable, Sequence

from switchyard.domain.journal.changes import Change
from switchyard.flow.wake import Wake


class WaitingLanes:
    """The lanes with orders that wait, and the wake-up of the dispatcher that sends them."""

    def __init__(self, wake: Wake) -> None:
        self._wake = wake
        self._lanes: set[int] = set()
        self._since_read: set[int] = set()
        """Those that were added since the last query began: the query may not have seen them."""

    def __contains__(self, lane: object) -> bool:
        """Whether an order of the lane may be waiting, or be on its way from the queue to the venue."""
        return lane in self._lanes

    def add(self, lane: int) -> None:
        """An order of the lane waits."""
        self._lanes.add(lane)
        self._since_read.add(lane)

    def wake(self) -> None:
        """Wake the dispatcher: its recovery has something to do."""
        self._wake.notify()

    def note(self, changes: Sequence[Change]) -> None:
        """Learn from committed changes what waits, and wake the dispatcher if it may have something to do."""
        wakes = bool(self._lanes)  # what was sent has freed a slot
        for change in changes:
            for _, row in change.outbox_updates():
                if row.status in ("queued", "failed"):
                    wakes = True
                    if row.kind == "new":
                        self.add(row.lane)
            for order in change.orders:
                # A cancel and an amend become due when their order is shown to be at the venue.
                wakes = wakes or order.status == "CANCEL_REQUESTED" or order.amend_qty is not None
        if wakes:
            self._wake.notify()

    def begin_read(self) -> None:
        """A query of the outbox begins."""
        self._since_read = set()

    def note_read(self, lanes: Iterable[int], *, is_complete: bool) -> None:
        """The query has found rows of these lanes; `is_complete` if it has found all that are due."""
        if is_complete:
            self._lanes = set(self._since_read)
        self._lanes.update(lanes)

    def note_started(self, lanes: Iterable[int]) -> None:
        """The rows of these lanes that the last query found have left the queue, in their order."""
        self._lanes.difference_update(lane for lane in lanes if lane not in self._since_read)
