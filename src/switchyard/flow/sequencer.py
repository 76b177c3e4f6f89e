"""The sequencer: the journal's only writer in a process. Collects changes from all callers and commits them in groups.

While one group is being committed, the next one collects, so that concurrent changes share the cost of a commit and a
single change is committed at once. Writes through `Journal.append`, wakes the readers after each commit.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Hashable, Sequence

import structlog

from switchyard.domain.changes import Change, Committed, Conflict, Outcome
from switchyard.domain.errors import (
    GroupRejected,
    HistoryMismatch,
    JournalBroken,
    OutcomeUnknown,
    QueueFull,
    SwitchyardError,
)
from switchyard.flow.wake import Wake
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.randomness import Randomness, fresh_ulid
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# Larger groups take longer to commit than they save: the next one could already have started.
GROUP_MAX = 512
# Callers that share a group are answered together and come back together, so that the database and the event loop would
# be idle in turns. From this number of callers on, two groups of half the size are used: while one is committed, the
# next one is ready behind it. With fewer callers the second commit costs more than it saves.
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
        # The caller may have been cancelled; its change is committed all the same.
        if not self.future.done():
            self.future.set_result(outcome)

    def fail(self, error: SwitchyardError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Sequencer:
    """Collects changes into groups and answers each caller once its group is committed."""

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
        on_committed: Sequence[Callable[[Change], None]] = (),
        shard: int = 0,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._randomness = randomness
        self._metrics = metrics
        self._wakes = wakes
        self._capacity = capacity
        self._on_broken = on_broken
        self._on_committed = on_committed
        self._shard = shard
        self._pending: deque[_Waiting] = deque()
        self._last_size = 0
        self._arrived = asyncio.Event()
        self._committing: set[asyncio.Task[None]] = set()

    async def offer(self, change: Change) -> Outcome:
        """Commit the change of a request; raises QueueFull at once where the queue is at its bound."""
        if len(self._pending) >= self._capacity:
            self._metrics.queue_rejects.inc()
            raise QueueFull("too many changes are waiting for the journal: repeat the request later")
        return await self.commit(change)

    async def commit(self, change: Change) -> Outcome:
        """Commit the change of a stage; not bounded here, since stages are bounded by their slots and pages."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._pending.append(_Waiting(change, future))
        self._arrived.set()
        return await future

    @property
    def depth(self) -> int:
        """How many changes are waiting."""
        return len(self._pending)

    async def run(self) -> None:
        """Commit groups for as long as the process lives."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._may_begin():
                group = self._next_group()
                task = asyncio.create_task(self._commit_group(group))
                self._committing.add(task)
                task.add_done_callback(self._committed)

    async def drain(self, seconds_max: float) -> None:
        """Wait until nothing is pending, for a limited time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while self._pending or self._committing:
                    await asyncio.wait(self._committing) if self._committing else await asyncio.sleep(0)

    def _may_begin(self) -> bool:
        """Whether the next group may start: at once when nothing is being committed, else only if it is as large."""
        if not self._pending or len(self._committing) >= COMMITTING_MAX:
            return False
        return not self._committing or len(self._pending) >= max(self._last_size, SPLIT_MIN)

    def _committed(self, task: "asyncio.Task[None]") -> None:
        self._committing.discard(task)
        self._arrived.set()
        for wake in self._wakes:
            wake.notify()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("sequencer_failed", error=repr(error))
            self._on_broken(repr(error))

    def _next_group(self) -> list[_Waiting]:
        """The next group: changes that touch different rows, in the order of arrival."""
        group: list[_Waiting] = []
        touched: dict[Hashable, _Waiting] = {}
        deferred: list[_Waiting] = []
        pending = self._pending
        callers = len(pending) + self._last_size  # the callers of the last group are about to come back
        size_max = min(max(callers // 2, SPLIT_MIN), GROUP_MAX)
        while pending and len(group) < size_max:
            waiting = pending.popleft()
            keys = _keys(waiting.change)
            earlier = [touched[key] for key in keys if key in touched]
            if not earlier:
                group.append(waiting)
                for key in keys:
                    touched[key] = waiting
            elif len(earlier) == 1 and waiting.change.keys and earlier[0].change.keys:
                # The same idempotency key twice: the first change's outcome answers the second one.
                if earlier[0].followers is None:
                    earlier[0].followers = []
                earlier[0].followers.append(waiting)
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
        except HistoryMismatch as error:
            # An older database is in the place of ours. It wrote nothing, but an earlier call whose answer was lost may
            # have committed to the one that is gone.
            self._fail(group, OutcomeUnknown(str(error)))
            self._on_broken(str(error))
            return
        except OutcomeUnknown as error:
            log.error("commit_outcome_unknown", changes=len(group), error=str(error))
            self._fail(group, error)
            return
        except SwitchyardError as error:
            log.error("commit_failed", changes=len(group), error=str(error))
            self._fail(group, error)
            return
        except Exception as error:
            # A defect of the journal adapter: answer the callers, and write nothing more.
            log.exception("journal_failed", changes=len(group))
            self._fail(group, OutcomeUnknown(repr(error)))
            self._on_broken(repr(error))
            return
        for waiting, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, Committed):
                for note in self._on_committed:
                    note(waiting.change)
            waiting.answer(outcome)
            if waiting.followers:
                self._answer_followers(waiting, outcome)

    async def _split(self, group: list[_Waiting], error: GroupRejected) -> None:
        """Commit a rejected group in halves, until the change that the database rejects is alone."""
        if len(group) == 1:
            log.error("change_rejected", error=str(error))
            self._fail(group, error)
            return
        middle = len(group) // 2
        await self._commit_group(group[:middle])
        await self._commit_group(group[middle:])

    def _answer_followers(self, leader: _Waiting, outcome: Outcome) -> None:
        holder = leader.change.keys[0] if isinstance(outcome, Committed) else outcome.key
        for follower in leader.followers or ():
            if holder is None:
                self._pending.append(follower)  # the leader's conflict was not about the key
            else:
                follower.answer(Conflict(holder))

    def _fail(self, group: list[_Waiting], error: SwitchyardError) -> None:
        for waiting in group:
            waiting.fail(error)
            for follower in waiting.followers or ():
                follower.fail(error)


def _keys(change: Change) -> list[Hashable]:
    """The rows that a change may touch: no two changes of a group share one."""
    keys: list[Hashable] = [order.order_id for order in change.orders]
    keys += [(entry.account_id, entry.operation, entry.idempotency_key) for entry in change.keys]
    keys += [(result.account_id, result.operation, result.idempotency_key) for result in change.results]
    keys += [(execution.venue, execution.exec_id) for execution in change.executions]
    keys += {("position", *position.key) for position in change.positions}
    keys += [("cursor", cursor.name) for cursor in change.cursors]
    return keys
