"""The sequencer: the journal's only writer in a process. Collects changes from all callers and commits them in groups.

While one group is being committed, the next one collects, so that concurrent changes share the cost of a commit and a
single change is committed at once. A change is a decision that its caller has made, on rows that it has read; a
proposal is a decision that the sequencer makes when it gathers the group, so that several on one order become one
write. `Committer` writes a group; the sequencer wakes the readers after each commit.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from switchyard.domain.changes import Change, Outcome
from switchyard.domain.errors import QueueFull
from switchyard.flow.commits import Committer, Completion, FirstAttempts
from switchyard.flow.groups import Group, Rows, Waiting, gather
from switchyard.flow.proposals import Answer, Page, Proposal, Proposed
from switchyard.flow.states import HotStates
from switchyard.flow.wake import Wake
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.randomness import Randomness
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# Larger groups take longer to commit than they save: the next one could already have started.
GROUP_MAX = 512
# Callers that share a group are answered together and come back together, so that the database and the event loop would
# be idle in turns. From this number of callers on, two groups of half the size are used: while one is committed, the
# next one is ready behind it. With fewer callers the second commit costs more than it saves.
SPLIT_MIN = 32
COMMITTING_MAX = 2
# With decisions of the stages, a group of this size starts while another one is being committed: what waits for them is
# the next stage, not a caller that comes back.
OVERLAP_MIN = 16


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
        completion: Completion | None = None,
        on_committed: Sequence[Callable[[Change], None]] = (),
        shard: int = 0,
    ) -> None:
        self._metrics = metrics
        self._wakes = wakes
        self._capacity = capacity
        self._on_broken = on_broken
        self.states = HotStates(journal)
        self._committer = Committer(
            journal,
            states=self.states,
            clock=clock,
            randomness=randomness,
            metrics=metrics,
            on_broken=on_broken,
            requeue=self._requeue,
            completion=completion,
            on_committed=on_committed,
            shard=shard,
        )
        self._pending: deque[Waiting | Proposed] = deque()
        self._deferred = 0
        """How many of the pending build on what is being committed."""
        self._proposed = 0
        """How many of the pending are proposals."""
        self._last_size = 0
        self._arrived = asyncio.Event()
        self._committing: dict[asyncio.Task[None], Rows] = {}

    async def offer(self, change: Change) -> Outcome:
        """Commit the change of a request; raises QueueFull at once where the queue is at its bound."""
        if len(self._pending) >= self._capacity:
            self._metrics.queue_rejects.inc()
            raise QueueFull("too many changes are waiting for the journal: repeat the request later")
        return await self.commit(change)

    async def commit(self, change: Change) -> Outcome:
        """Commit the change of a stage; not bounded here, since stages are bounded by their slots and pages.

        A kill goes before everything that waits.
        """
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        waiting = Waiting(change, future)
        self._pending.appendleft(waiting) if change.kills else self._pending.append(waiting)
        self._arrived.set()
        return await future

    async def propose(self, proposals: Sequence[Proposal]) -> list[Answer]:
        """Decide and commit a page of proposals of a stage; returns their answers, in the same order.

        Those on one order are decided in this order. Raises Unavailable where the states cannot be read.
        """
        if not proposals:
            return []
        read = await self.states.load([proposal.order_id for proposal in proposals])
        await self.states.load_positions([key for proposal in proposals for key in proposal.positions])
        page = Page(len(proposals))
        self._pending.extend(
            Proposed(proposal, proposal.order_id in read, page, place) for place, proposal in enumerate(proposals)
        )
        self._proposed += len(proposals)
        self._arrived.set()
        return await page.future

    def begin_first_attempts(self, first_attempts: FirstAttempts) -> None:
        """Have the first attempts of new orders begun in the commits that accept them, from now on."""
        self._committer.first_attempts = first_attempts

    @property
    def depth(self) -> int:
        """How many changes are waiting."""
        return len(self._pending)

    def commit_problem(self) -> str | None:
        """Why changes are not stored at present; none where nothing is known against it."""
        return self._committer.watch.problem()

    async def run(self) -> None:
        """Commit groups for as long as the process lives."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._may_begin():
                group = self._next_group()
                if not group.entries:
                    if not group.size:
                        break  # all that is waiting builds on what is being committed
                    continue  # the decisions were to do nothing
                task = asyncio.create_task(self._committer.commit(group.entries))
                self._committing[task] = group.rows
                task.add_done_callback(self._committed)

    async def drain(self, seconds_max: float) -> None:
        """Wait until nothing is pending, for a limited time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while self._pending or self._committing:
                    await asyncio.wait(self._committing) if self._committing else await asyncio.sleep(0)

    def _may_begin(self) -> bool:
        """Whether the next group may start: at once if nothing is being committed, else if it is worth a commit."""
        if not self._pending or len(self._committing) >= COMMITTING_MAX:
            return False
        ready = len(self._pending) - self._deferred
        worthwhile = OVERLAP_MIN if self._proposed else max(self._last_size, SPLIT_MIN)
        return not self._committing or ready >= worthwhile

    def _committed(self, task: "asyncio.Task[None]") -> None:
        del self._committing[task]
        self._deferred = 0
        self._arrived.set()
        for wake in self._wakes:
            wake.notify()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("sequencer_failed", error=repr(error))
            self._on_broken(repr(error))

    def _next_group(self) -> Group:
        callers = len(self._pending) + self._last_size  # the callers of the last group are about to come back
        size_max = min(max(callers // 2, SPLIT_MIN), GROUP_MAX)
        group = gather(self._pending, self.states, list(self._committing.values()), size_max)
        self._deferred = group.deferred
        self._proposed -= group.proposals
        self._last_size = group.size or self._last_size
        return group

    def _requeue(self, entries: Sequence[Waiting]) -> None:
        """Take entries again that arrived before those that are waiting."""
        self._pending.extendleft(reversed(entries))
        self._arrived.set()
