"""The journal's only writer in a process: takes changes from everyone, commits them in groups.

While one group is being committed the next one gathers, so that the price of a commit is shared by all who
came meanwhile, and a lone change waits for nobody.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Hashable, Sequence

import structlog

from switchyard.domain.changes import Change, Committed, Conflict, Outcome
from switchyard.domain.errors import GroupRejected, JournalBroken, OutcomeUnknown, QueueFull, SwitchyardError
from switchyard.flow.wake import Wake
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.randomness import Randomness, fresh_ulid
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# Beyond this a group's commit takes longer than it saves: the next one could have started.
GROUP_MAX = 512
# Callers that wait for each other move in step: all are answered at once, all come back at once, and the database and
# the event loop take turns in being idle. From this size on a crowd is split in two groups: while one is committed the
# next stands ready behind it. A smaller crowd would pay for a second commit more than it wins.
SPLIT_MIN = 32
COMMITTING_MAX = 2


class _Waiting:
    """A change whose caller waits for its outcome."""

    __slots__ = ("change", "followers", "future")

    def __init__(self, change: Change, future: "asyncio.Future[Outcome]") -> None:
        self.change = change
        self.future = future
        self.followers: list[_Waiting] | None = None

    def answer(self, outcome: Outcome) -> None:
        # A caller that has gone away harms nobody; its change is as durable as any other.
        if not self.future.done():
            self.future.set_result(outcome)

    def fail(self, error: SwitchyardError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Sequencer:
    """Gathers changes into groups and answers each caller once its group is durable."""

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        wakes: Sequence[Wake],
        capacity: int,
        on_broken: Callable[[str], None],
        shard: int = 0,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._randomness = randomness
        self._metrics = metrics
        self._wakes = wakes
        self._capacity = capacity
        self._on_broken = on_broken
        self._shard = shard
        self._pending: deque[_Waiting] = deque()
        self._last_size = 0
        self._arrived = asyncio.Event()
        self._committing: set[asyncio.Task[None]] = set()

    async def offer(self, change: Change) -> Outcome:
        """Have a request's change committed; raises QueueFull at once when too many are waiting already."""
        if len(self._pending) >= self._capacity:
            self._metrics.queue_rejects.inc()
            raise QueueFull("too many changes are waiting for the journal")
        return await self.commit(change)

    async def commit(self, change: Change) -> Outcome:
        """Have a stage's change committed; stages bound themselves by their slots and pages."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._pending.append(_Waiting(change, future))
        self._arrived.set()
        return await future

    @property
    def depth(self) -> int:
        """How many changes wait."""
        return len(self._pending)

    async def run(self) -> None:
        """Commit groups for as long as the process lives."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._may_begin():
                group = self._gather()
                task = asyncio.create_task(self._commit_group(group))
                self._committing.add(task)
                task.add_done_callback(self._committed)

    async def drain(self, seconds_max: float) -> None:
        """Wait until nothing is pending, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while self._pending or self._committing:
                    await asyncio.wait(self._committing) if self._committing else await asyncio.sleep(0)

    def _may_begin(self) -> bool:
        """At once when nothing is being committed; behind another group only with one that is as large."""
        if not self._pending or len(self._committing) >= COMMITTING_MAX:
            return False
        return not self._committing or len(self._pending) >= max(self._last_size, SPLIT_MIN)

    def _committed(self, task: "asyncio.Task[None]") -> None:
        self._committing.discard(task)
        self._arrived.set()
        for wake in self._wakes:
            wake.notify()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the sequencer has a defect", error=repr(error))
            self._on_broken(repr(error))

    def _gather(self) -> list[_Waiting]:
        """The next group: changes that touch different rows, in the order of their coming."""
        group: list[_Waiting] = []
        touched: dict[Hashable, _Waiting] = {}
        deferred: list[_Waiting] = []
        pending = self._pending
        crowd = len(pending) + self._last_size  # those of the last group are on their way back
        size_max = min(max(crowd // 2, SPLIT_MIN), GROUP_MAX)
        while pending and len(group) < size_max:
            waiting = pending.popleft()
            keys = _keys(waiting.change)
            met = [touched[key] for key in keys if key in touched]
            if not met:
                group.append(waiting)
                for key in keys:
                    touched[key] = waiting
            elif len(met) == 1 and waiting.change.keys and met[0].change.keys:
                # The same idempotency key twice: the first one's fate answers the second.
                if met[0].followers is None:
                    met[0].followers = []
                met[0].followers.append(waiting)
            else:
                deferred.append(waiting)
                for key in keys:
                    touched.setdefault(key, waiting)
        pending.extendleft(reversed(deferred))
        self._last_size = len(group)
        return group

    async def _commit_group(self, group: list[_Waiting]) -> None:
        self._metrics.group_size.observe(len(group))
        group_id = fresh_ulid(self._clock, self._randomness)
        try:
            outcomes = await self._journal.append(
                self._shard, group_id, [waiting.change for waiting in group], self._clock.now()
            )
        except GroupRejected as error:
            await self._split(group, error)
            return
        except JournalBroken as error:
            self._fail(group, error)
            self._on_broken(str(error))
            return
        except OutcomeUnknown as error:
            log.error("the outcome of a commit is unknown", changes=len(group), error=str(error))
            self._fail(group, error)
            return
        except SwitchyardError as error:
            log.error("the journal did not take a group", changes=len(group), error=str(error))
            self._fail(group, error)
            return
        except Exception as error:
            # A defect in the one writer: the callers must not hang, and nothing may be written after it.
            log.exception("the journal failed in an unexpected way")
            self._fail(group, OutcomeUnknown(repr(error)))
            self._on_broken(repr(error))
            return
        for waiting, outcome in zip(group, outcomes, strict=True):
            waiting.answer(outcome)
            if waiting.followers:
                self._answer_followers(waiting, outcome)

    async def _split(self, group: list[_Waiting], error: GroupRejected) -> None:
        """One bad change must not fail its group: halve it until the bad one stands alone."""
        if len(group) == 1:
            log.error("a change cannot be written", error=str(error))
            self._fail(group, error)
            return
        middle = len(group) // 2
        await self._commit_group(group[:middle])
        await self._commit_group(group[middle:])

    def _answer_followers(self, leader: _Waiting, outcome: Outcome) -> None:
        taken = leader.change.keys[0] if isinstance(outcome, Committed) else outcome.key
        for follower in leader.followers or ():
            if taken is None:
                self._pending.append(follower)  # the leader failed for a reason of its own
            else:
                follower.answer(Conflict(taken))

    def _fail(self, group: list[_Waiting], error: SwitchyardError) -> None:
        for waiting in group:
            waiting.fail(error)
            for follower in waiting.followers or ():
                follower.fail(error)


def _keys(change: Change) -> list[Hashable]:
    """The rows that a change may touch: no two changes of a group share one."""
    keys: list[Hashable] = [order.order_id for order in change.orders]
    keys += [(entry.account_id, entry.operation, entry.idempotency_key) for entry in change.keys]
    keys += [(execution.venue, execution.exec_id) for execution in change.executions]
    keys += {("position", *position.key) for position in change.positions}
    keys += [("cursor", cursor.name) for cursor in change.cursors]
    return keys
