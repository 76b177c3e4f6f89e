"""The sequencer: the journal's only writer in a process. Collects changes from all callers and commits them in groups.

While one group is being committed, the next one collects, so that concurrent changes share the cost of a commit and a
single change is committed at once. A change is a decision that its caller has made, on rows that it has read; a
proposal is a decision that the sequencer makes when it gathers the group, so that several on one order become one
write. Writes through `Journal.append`, wakes the readers after each commit.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

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
from switchyard.domain.idempotency import KeyEntry
from switchyard.flow.groups import Group, Rows, Waiting, gather
from switchyard.flow.proposals import Answer, Composition, Failed, Page, Proposal, Proposed, Unit
from switchyard.flow.states import HotStates
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
# With decisions of the stages, a group of this size starts while another one is being committed: what waits for them is
# the next stage, not a caller that comes back.
OVERLAP_MIN = 16


class Completion(Protocol):
    """Adds to a change what has to be committed with it and must first be read."""

    def is_needed(self, change: Change) -> bool:
        """Whether `complete` adds something."""
        ...

    async def complete(self, change: Change) -> Change:
        """The change with what belongs to it."""
        ...


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
        self._journal = journal
        self._clock = clock
        self._randomness = randomness
        self._metrics = metrics
        self._wakes = wakes
        self._capacity = capacity
        self._on_broken = on_broken
        self._completion = completion
        self._on_committed = on_committed
        self._shard = shard
        self.states = HotStates(journal)
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
                if not group.entries:
                    if not group.size:
                        break  # all that is waiting builds on what is being committed
                    continue  # the decisions were to do nothing
                task = asyncio.create_task(self._commit_group(group.entries))
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

    async def _commit_group(self, group: Sequence[Waiting | Unit]) -> None:
        self._metrics.group_size.observe(sum(len(entry.members) if isinstance(entry, Unit) else 1 for entry in group))
        ready = await self._completed(group)
        if not ready:
            return
        group_id = fresh_ulid(self._clock, self._randomness)
        try:
            outcomes = await self._journal.append(
                self._shard, group_id, [change for _, change in ready], self._clock.now()
            )
        except GroupRejected as error:
            await self._split([entry for entry, _ in ready], error)
            return
        except JournalBroken as error:
            self._fail(ready, error)
            self._on_broken(str(error))
            return
        except HistoryMismatch as error:
            # An older database is in the place of ours. It wrote nothing, but an earlier call whose answer was lost may
            # have committed to the one that is gone.
            self._fail(ready, OutcomeUnknown(str(error)))
            self._on_broken(str(error))
            return
        except OutcomeUnknown as error:
            log.error("commit_outcome_unknown", changes=len(ready), error=str(error))
            self._fail(ready, error)
            return
        except SwitchyardError as error:
            log.error("commit_failed", changes=len(ready), error=str(error))
            self._fail(ready, error)
            return
        except Exception as error:
            # A defect of the journal adapter: answer the callers, and write nothing more.
            log.exception("journal_failed", changes=len(ready))
            self._fail(ready, OutcomeUnknown(repr(error)))
            self._on_broken(repr(error))
            return
        for (entry, change), outcome in zip(ready, outcomes, strict=True):
            self._settle(entry, change, outcome)

    async def _completed(self, group: Sequence[Waiting | Unit]) -> list[tuple[Waiting | Unit, Change]]:
        """The entries with their changes, each complete; one that cannot be completed fails alone."""
        ready: list[tuple[Waiting | Unit, Change]] = []
        for entry in group:
            change = entry.change
            if self._completion is not None and self._completion.is_needed(change):
                try:
                    change = await self._completion.complete(change)
                except SwitchyardError as error:
                    self._fail([(entry, change)], error)
                    continue
            ready.append((entry, change))
        return ready

    def _settle(self, entry: Waiting | Unit, change: Change, outcome: Outcome) -> None:
        """Note the outcome of a change in the states in memory, then answer its callers."""
        if isinstance(outcome, Committed):
            for note in self._on_committed:
                note(change)
        else:
            self.states.forget(change)
        if isinstance(entry, Unit):
            if isinstance(outcome, Committed):
                self.states.note_all(entry.states.values(), entry.positions.values())
                entry.answer_committed()
            else:
                entry.answer(outcome)
            return
        if isinstance(outcome, Committed):
            self.states.note_committed(change, outcome)
        entry.answer(outcome)
        if entry.followers:
            self._answer_followers(entry, outcome)

    async def _split(self, group: Sequence[Waiting | Unit], error: GroupRejected) -> None:
        """Commit a rejected group in halves, until the decision that the database rejects is alone."""
        if len(group) > 1:
            middle = len(group) // 2
            await self._commit_group(group[:middle])
            await self._commit_group(group[middle:])
            return
        [entry] = group
        if isinstance(entry, Unit) and len(entry.members) > 1:
            middle = len(entry.members) // 2
            for half in (entry.members[:middle], entry.members[middle:]):
                # Decided again: the second half builds on what is committed of the first.
                composition = Composition(self.states)
                for proposed, _ in half:
                    composition.add(proposed)
                await self._commit_group(composition.units)
            return
        log.error("change_rejected", error=str(error))
        self._answer_failed(entry, error)  # nothing was written: the states in memory are still those of the database

    def _answer_followers(self, leader: Waiting, outcome: Outcome) -> None:
        holder = outcome.key if isinstance(outcome, Conflict) else _stored_key(leader.change)
        for follower in leader.followers or ():
            if holder is None:
                self._pending.append(follower)  # the leader's conflict was not about the key
            else:
                follower.answer(Conflict(holder))

    def _fail(self, group: Sequence[tuple[Waiting | Unit, Change]], error: SwitchyardError) -> None:
        for entry, change in group:
            self.states.forget(change)
            self._answer_failed(entry, error)

    def _answer_failed(self, entry: Waiting | Unit, error: SwitchyardError) -> None:
        if isinstance(entry, Unit):
            entry.answer(Failed(error))
            return
        entry.fail(error)
        for follower in entry.followers or ():
            follower.fail(error)


def _stored_key(change: Change) -> KeyEntry:
    """The key's row after the change: with its result, if the change also ends the order."""
    [entry] = change.keys
    stored: KeyEntry | None = entry
    for result in change.results:
        stored = result.written_to(stored)
    return entry if stored is None else stored
