"""The sequencer: the journal's only writer in a process. Commits decisions in groups and answers those who made them.

While one group is being committed, the next one collects, so that concurrent decisions share the cost of a commit and a
single one is committed at once. Writes through `Journal.append`, keeps the states in memory true, begins first attempts
with the orders that it accepts, splits a group that the database rejects, and wakes the readers after each commit.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence, Set
from functools import partial
from typing import Protocol

import structlog

from switchyard.domain.errors import (
    GroupRejected,
    HistoryMismatch,
    JournalBroken,
    OutcomeUnknown,
    QueueFull,
    SwitchyardError,
    Unavailable,
)
from switchyard.domain.ids import OrderId
from switchyard.domain.journal.changes import Change, Committed, Conflict, Outcome, merged
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.outbox import OrderState
from switchyard.flow.clock import Wake
from switchyard.flow.commit.groups import Answer, Decided, Decision, Failed, Group, Unit, gather, of_change, of_order
from switchyard.flow.commit.states import OrderStateCache
from switchyard.ports.clock import Clock, Randomness, fresh_ulid
from switchyard.ports.journal import Journal
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
# A commit takes milliseconds. After this time without an answer, requests should go to another process.
COMMIT_SECONDS_MAX = 2.0
# How long a failure counts without another commit: then requests come again, and the next one decides.
FAILURE_SECONDS = 10.0
# An order has a handful of writers; this many conflicts in a row are a defect, not bad luck.
TRIES_MAX = 32

Commit = Callable[[Change], Awaitable[Outcome]]
Propose = Callable[[Sequence[Decision]], Awaitable[Sequence[Answer]]]


class Completion(Protocol):
    """Adds to a change what has to be committed with it and must first be read."""

    def is_needed(self, change: Change) -> bool:
        """Whether `complete` adds something."""
        ...

    async def complete(self, change: Change) -> Change:
        """The change with what belongs to it."""
        ...


class FirstAttempts(Protocol):
    """Begins the first attempts of new orders in the commits that accept them; part of a worker."""

    def begin(self, changes: Sequence[tuple[Change, bool]]) -> list[Change | None]:
        """For each change of a group the change with its first attempt; None if no attempt begins with it.

        The changes come in the order of the group, each with whether an attempt may begin with it. Each one that begins
        must be settled or abandoned.
        """
        ...

    def settle(self, begun: Sequence[tuple[Change, Outcome]]) -> None:
        """Send the attempts that are committed, and give up those that conflicted."""
        ...

    def abandon(self, begun: Sequence[Change], *, may_be_committed: bool) -> None:
        """Give up attempts that were not committed, or of which that is not known."""
        ...


class Contention(Exception):
    """A version conflict at every try: a defect."""


class Sequencer:
    """Commits what it is offered, in groups."""

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
        on_committed: Sequence[Callable[[Sequence[Change]], None]] = (),
        shard: int = 0,
    ) -> None:
        """`on_committed` are told the changes of each group that was committed."""
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
        self.states = OrderStateCache(journal)
        self.first_attempts: FirstAttempts | None = None
        """Set if this process sends."""
        self._pending: deque[Decision] = deque()
        self._deferred = 0
        """How many of the pending build on what is being committed."""
        self._proposed = 0
        """How many of the pending are proposals of stages."""
        self._last_size = 0
        self._arrived = asyncio.Event()
        self._committing: dict[asyncio.Task[None], Set[Hashable]] = {}
        self._began: dict[str, float] = {}
        self._failure: tuple[float, str] | None = None

    def offer(self, change: Change) -> "asyncio.Future[Outcome]":
        """Commit the change of a request; raises QueueFull at once if the queue is at its bound."""
        if len(self._pending) >= self._capacity:
            self._metrics.queue_rejects.inc()
            raise QueueFull("too many changes are waiting for the journal: repeat the request later")
        return self.commit(change)

    def commit(self, change: Change) -> "asyncio.Future[Outcome]":
        """Commit the change of a stage; not bounded here, since stages are bounded by their slots and pages.

        A kill goes before everything that waits.
        """
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        decision = of_change(change, partial(_resolve, future))
        self._pending.appendleft(decision) if change.kills else self._pending.append(decision)
        self._arrived.set()
        return future

    async def propose(self, decisions: Sequence[Decision]) -> list[Answer]:
        """Commit a page of decisions of a stage; returns their answers, in the same order.

        Those on one order are made in this order. Raises Unavailable if the states cannot be read.
        """
        if not decisions:
            return []
        read = await self.states.load([decision.order_id for decision in decisions if decision.order_id is not None])
        positions = [key for decision in decisions for key in decision.positions]
        if positions:
            await self.states.load_positions(positions)
        answers: list[Answer] = [None] * len(decisions)
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        missing = len(decisions)

        def note(place: int, answer: Answer) -> None:
            nonlocal missing
            answers[place] = answer
            missing -= 1
            # The caller may have been cancelled; its decisions are committed all the same.
            if not missing and not future.done():
                future.set_result(answers)

        for place, decision in enumerate(decisions):
            self._pending.append(of_order(decision, partial(note, place), was_read=decision.order_id in read))
        self._proposed += len(decisions)
        self._arrived.set()
        return await future

    @property
    def depth(self) -> int:
        """How many decisions are waiting."""
        return len(self._pending)

    def commit_problem(self) -> str | None:
        """Why changes are not stored at present; None if nothing is known against it.

        For `/health/ready`: a database that can be read may still take no writes.
        """
        now = self._clock.monotonic()
        seconds = now - min(self._began.values(), default=now)
        if seconds >= COMMIT_SECONDS_MAX:
            return f"a commit has had no answer for {seconds:.0f} s"
        if self._failure is not None and now - self._failure[0] < FAILURE_SECONDS:
            return f"the last commit failed: {self._failure[1]}"
        return None

    async def run(self) -> None:
        """Commit groups for as long as the process lives."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._may_begin():
                group = self._next_group()
                units = group.units
                if not units:
                    if not group.size:
                        break  # all that is waiting builds on what is being committed
                    continue  # the decisions were to do nothing
                task = asyncio.create_task(self._commit(units))
                self._committing[task] = group.rows
                task.add_done_callback(self._ended)

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
        if not self._committing:
            return True
        ready = len(self._pending) - self._deferred
        return ready >= (OVERLAP_MIN if self._proposed else max(self._last_size, SPLIT_MIN))

    def _next_group(self) -> Group:
        callers = len(self._pending) + self._last_size  # the callers of the last group are about to come back
        size_max = min(max(callers // 2, SPLIT_MIN), GROUP_MAX)
        group = gather(self._pending, self.states, list(self._committing.values()), size_max)
        self._deferred = group.deferred
        self._proposed -= group.proposals
        self._last_size = group.size or self._last_size
        return group

    def _ended(self, task: "asyncio.Task[None]") -> None:
        del self._committing[task]
        self._deferred = 0
        self._arrived.set()
        for wake in self._wakes:
            if not wake.is_notified:
                wake.notify()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("sequencer_failed", error=repr(error))
            self._on_broken(repr(error))

    def _requeue(self, decisions: Sequence[Decision]) -> None:
        """Take decisions again that arrived before those that are waiting."""
        self._pending.extendleft(reversed(decisions))
        self._arrived.set()

    async def _commit(self, units: Sequence[Unit]) -> None:
        """Commit a group and answer its decisions."""
        self._metrics.group_size.observe(sum([len(unit.members) for unit in units]))
        ready = await self._completed(units)
        if not ready:
            return
        begun = self._begin(ready)
        changes = [change if started is None else started for (_, change), started in zip(ready, begun, strict=True)]
        group_id = fresh_ulid(self._clock, self._randomness)
        self._began[group_id] = self._clock.monotonic()
        try:
            outcomes = await self._journal.append(self._shard, group_id, changes, self._clock.now())
        except BaseException as error:
            # A group that is rejected for its values says nothing about the next one.
            self._note_commit(group_id, None if isinstance(error, GroupRejected) else str(error) or repr(error))
            if not isinstance(error, Exception):
                raise
            attempts = [change for change in begun if change is not None]
            if attempts and self.first_attempts is not None:
                self.first_attempts.abandon(attempts, may_be_committed=not isinstance(error, Unavailable))
            await self._append_failed(ready, error)
            return
        self._note_commit(group_id, None)
        self._settle([unit for unit, _ in ready], changes, begun, outcomes)

    def _note_commit(self, group_id: str, failure: str | None) -> None:
        del self._began[group_id]
        self._failure = None if failure is None else (self._clock.monotonic(), failure)

    def _begin(self, ready: Sequence[tuple[Unit, Change]]) -> Sequence[Change | None]:
        if self.first_attempts is None:
            return [None] * len(ready)
        return self.first_attempts.begin(
            [(change, unit.fixed is not None and unit.fixed.may_begin) for unit, change in ready]
        )

    def _settle(
        self,
        units: Sequence[Unit],
        changes: Sequence[Change],
        begun: Sequence[Change | None],
        outcomes: Sequence[Outcome],
    ) -> None:
        """Note the outcomes of a group in the states in memory, send what has begun, then answer the decisions."""
        committed = [
            change for change, outcome in zip(changes, outcomes, strict=True) if isinstance(outcome, Committed)
        ]
        for note in self._on_committed:
            note(committed)
        attempts: list[tuple[Change, Outcome]] = []
        again: list[Decision] = []
        for unit, change, started, outcome in zip(units, changes, begun, outcomes, strict=True):
            fixed = unit.fixed
            if started is not None and fixed is not None:
                attempts.append((started, outcome))
                if isinstance(outcome, Conflict) and outcome.is_of_rows:
                    # Its lane has a queue, or the venue has reported on it: it waits for its turn in the outbox.
                    fixed.may_begin = False
                    again.append(fixed)
                    continue
            if not isinstance(outcome, Committed):
                self.states.forget(change)
                unit.answer(outcome)
            elif fixed is not None:
                self.states.note_committed(change, outcome)
                fixed.done(outcome)
            else:
                self.states.note_all(unit.states, unit.positions)
                for decision, decided in unit.members:
                    decision.done(decided)
            if fixed is not None and fixed.followers:
                self._answer_followers(fixed, outcome)
        if again:
            self._requeue(again)
        if attempts and self.first_attempts is not None:
            self.first_attempts.settle(attempts)

    async def _completed(self, units: Sequence[Unit]) -> list[tuple[Unit, Change]]:
        """The units with their changes, each complete; one that cannot be completed fails alone."""
        ready: list[tuple[Unit, Change]] = []
        for unit in units:
            change = unit.changes[0] if len(unit.changes) == 1 else merged(unit.changes)
            if self._completion is not None and self._completion.is_needed(change):
                try:
                    change = await self._completion.complete(change)
                except SwitchyardError as error:
                    self._fail([(unit, change)], error)
                    continue
            ready.append((unit, change))
        return ready

    async def _append_failed(self, ready: Sequence[tuple[Unit, Change]], error: Exception) -> None:
        """Answer the decisions of a group that was not written, or of which that is not known."""
        match error:
            case GroupRejected():
                await self._split([unit for unit, _ in ready], error)
            case JournalBroken():
                self._fail(ready, error)
                self._on_broken(str(error))
            case HistoryMismatch():
                # An older database is in the place of ours. It wrote nothing, but an earlier call whose answer was lost
                # may have committed to the one that is gone.
                self._fail(ready, OutcomeUnknown(str(error)))
                self._on_broken(str(error))
            case OutcomeUnknown():
                log.error("commit_outcome_unknown", changes=len(ready), error=str(error))
                self._fail(ready, error)
            case SwitchyardError():
                log.error("commit_failed", changes=len(ready), error=str(error))
                self._fail(ready, error)
            case _:
                # A defect of the journal adapter: answer the callers, and write nothing more.
                log.error("journal_failed", changes=len(ready), exc_info=error)
                self._fail(ready, OutcomeUnknown(repr(error)))
                self._on_broken(repr(error))

    async def _split(self, units: Sequence[Unit], error: GroupRejected) -> None:
        """Commit a rejected group in halves, until the decision that the database rejects is alone."""
        if len(units) > 1:
            middle = len(units) // 2
            await self._commit(units[:middle])
            await self._commit(units[middle:])
            return
        [unit] = units
        if len(unit.members) > 1:
            middle = len(unit.members) // 2
            for half in (unit.members[:middle], unit.members[middle:]):
                # Decided again: the second half builds on what is committed of the first.
                group = Group(self.states)
                for decision, _ in half:
                    group.add(decision)
                await self._commit(group.units)
            return
        log.error("change_rejected", error=str(error))
        self._answer_failed(unit, error)  # nothing was written: the states in memory are still those of the database

    def _answer_followers(self, leader: Decision, outcome: Outcome) -> None:
        assert leader.change is not None, "only a change has a key"
        holder = outcome.key if isinstance(outcome, Conflict) else _stored_key(leader.change)
        followers, leader.followers = leader.followers or [], None
        if holder is None:
            self._requeue(followers)  # the leader's conflict was not about the key
            return
        for follower in followers:
            follower.done(Conflict(holder))

    def _fail(self, group: Sequence[tuple[Unit, Change]], error: SwitchyardError) -> None:
        for unit, change in group:
            self.states.forget(change)
            self._answer_failed(unit, error)

    def _answer_failed(self, unit: Unit, error: SwitchyardError) -> None:
        unit.answer(Failed(error))
        for follower in (unit.fixed and unit.fixed.followers) or ():
            follower.done(Failed(error))


def _resolve(future: "asyncio.Future[Outcome]", answer: Answer) -> None:
    """Answer the caller of one change."""
    if future.done():
        return  # it was cancelled; its change is committed all the same
    if isinstance(answer, Failed):
        future.set_exception(answer.error)
    else:
        assert isinstance(answer, Committed | Conflict), "a change is committed or not"
        future.set_result(answer)


def _stored_key(change: Change) -> KeyEntry:
    """The key's row after the change: with its result, if the change also ends the order."""
    [entry] = change.keys
    stored: KeyEntry | None = entry
    for result in change.results:
        stored = result.written_to(stored)
    return entry if stored is None else stored


@contextlib.contextmanager
def after_commit() -> Iterator[None]:
    """Reads for a request whose write is committed: 'unavailable' would mean that nothing was written."""
    try:
        yield
    except Unavailable as error:
        raise OutcomeUnknown(str(error)) from error


async def decide(
    journal: Journal,
    commit: Commit,
    order_id: OrderId,
    decision: Callable[[OrderState], Change | None],
    state: OrderState | None = None,
) -> Change | None:
    """Commit the decision on the order's newest state; returns the change, or None if the decision is None.

    `state` saves the first load if the caller has just read the order.
    """
    for _ in range(TRIES_MAX):
        if state is None:
            state = (await journal.load([order_id]))[order_id]
        change = decision(state)
        if change is None:
            return None
        if isinstance(await commit(change), Committed):
            return change
        state = None
    raise Contention(f"order {order_id} could not be written in {TRIES_MAX} tries")


async def decide_all(
    propose: Propose, decisions: Sequence[Decision], first: Sequence[Answer] | None = None
) -> list[Decided | Failed | None]:
    """Propose until no decision was made on a state that is not the newest; returns the answers, in the same order.

    `first` has the answers if they were proposed once already.
    """
    answers = list(await propose(decisions) if first is None else first)
    for _ in range(TRIES_MAX):
        again = [place for place, answer in enumerate(answers) if isinstance(answer, Conflict)]
        if not again:
            return [answer for answer in answers if not isinstance(answer, Conflict | Committed)]
        for place, answer in zip(again, await propose([decisions[place] for place in again]), strict=True):
            answers[place] = answer
    raise Contention(f"order {decisions[again[0]].order_id} could not be written in {TRIES_MAX} tries")
