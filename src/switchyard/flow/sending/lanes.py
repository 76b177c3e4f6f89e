"""Order of departure: which lanes a worker sends, and who leaves after whom."""

import asyncio
from collections import Counter
from collections.abc import Hashable

from switchyard.domain.ids import WorkerId
from switchyard.domain.outbox import LANES
from switchyard.ports.clock import Clock
from switchyard.ports.lanes import Lanes, LaneShare

# A lane whose owner died is taken over within this time: well below the deadline of an order that wants to be filled
# at once (2.5 s).
RENEW_SECONDS = 0.5
# A worker that could not renew for so long may have been passed over; half of the others' patience with it.
STALE_SECONDS = 5.0


class HeldLanes:
    """The lanes of one worker: renewed all the time, given up only once nothing is under way on them."""

    def __init__(self, lanes: Lanes, worker: WorkerId, clock: Clock) -> None:
        self._lanes = lanes
        self._worker = worker
        self._clock = clock
        self._held = LaneShare(frozenset(), 0)
        self._leaving: frozenset[int] = frozenset()
        self._under_way: Counter[int] = Counter()
        self._renewed_at = float("-inf")

    async def run(self) -> None:
        """Renew for as long as the process lives."""
        while True:
            await self.renew()
            await asyncio.sleep(RENEW_SECONDS)

    async def renew(self) -> None:
        """Stay an owner; lanes beyond a fair share go to others, the busy ones when they are idle."""
        asked_at = self._clock.monotonic()
        self._held = await self._lanes.hold(self._worker, [lane for lane in self._leaving if not self._under_way[lane]])
        self._renewed_at = asked_at
        # What was being given up stays so, lest a lane that is never idle be kept by changing one's mind.
        kept = sorted(self._leaving & self._held.lanes)
        others = [lane for lane in sorted(self._held.lanes, reverse=True) if lane not in kept]
        self._leaving = frozenset((kept + others)[: max(len(self._held.lanes) - self._held.share, 0)])

    def usable(self) -> frozenset[int]:
        """The lanes to send on right now: none when the last renewal is too long ago."""
        if self._clock.monotonic() - self._renewed_at > STALE_SECONDS:
            return frozenset()
        return self._held.lanes - self._leaving

    def begin(self, lane: int) -> None:
        """Something is under way on this lane."""
        self._under_way[lane] += 1

    def end(self, lane: int) -> None:
        """It has come to its end."""
        self._under_way[lane] -= 1

    def filter(self) -> list[int] | None:
        """The same as a filter on rows: none where every lane is usable."""
        usable = self.usable()
        return None if len(usable) == LANES else sorted(usable)


class Turn:
    """One send's place in a line of departures."""

    def __init__(self, line: "Departures", key: Hashable, before: asyncio.Event | None) -> None:
        self._line = line
        self._key = key
        self._before = before
        self._departed = asyncio.Event()

    async def comes_within(self, seconds: float) -> bool:
        """Wait until whoever stands before has left, at most so long."""
        if self._before is None or self._before.is_set():
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._before.wait()
        except TimeoutError:
            return False
        return True

    def depart(self) -> None:
        """Nothing holds back the next one any more; called as often as one likes."""
        self._departed.set()
        self._line.forget(self._key, self._departed)

    @property
    def departed(self) -> asyncio.Event:
        """Set once this one has left."""
        return self._departed


class Departures:
    """Lines of sends that must not overtake each other, one for each key."""

    def __init__(self) -> None:
        self._last: dict[Hashable, asyncio.Event] = {}

    def join(self, key: Hashable) -> Turn:
        """Stand at the end of a line."""
        turn = Turn(self, key, self._last.get(key))
        self._last[key] = turn.departed
        return turn

    def forget(self, key: Hashable, departed: asyncio.Event) -> None:
        """Drop a line whose last has left."""
        if self._last.get(key) is departed:
            del self._last[key]
