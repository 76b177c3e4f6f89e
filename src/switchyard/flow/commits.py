"""Commits one group: completes its changes, begins first attempts with them, appends, and answers the callers.

Writes through `Journal.append`, keeps the states in memory true, and splits a group that the database rejects.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from switchyard.domain.changes import Change, Committed, Conflict, Outcome
from switchyard.domain.errors import (
    GroupRejected,
    HistoryMismatch,
    JournalBroken,
    OutcomeUnknown,
    SwitchyardError,
    Unavailable,
)
from switchyard.domain.idempotency import KeyEntry
from switchyard.flow.commit_watch import CommitWatch
from switchyard.flow.groups import Waiting
from switchyard.flow.proposals import Composition, Failed, Unit
from switchyard.flow.states import HotStates
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.randomness import Randomness, fresh_ulid
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()


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
        """For each change of a group the change with its first attempt; none where no attempt begins with it.

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


class Committer:
    """Commits groups and answers their callers."""

    def __init__(
        self,
        journal: Journal,
        *,
        states: HotStates,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        on_broken: Callable[[str], None],
        requeue: Callable[[Sequence[Waiting]], None],
        completion: Completion | None,
        on_committed: Sequence[Callable[[Change], None]],
        shard: int,
    ) -> None:
        """`requeue` takes entries to be committed with a later group."""
        self._journal = journal
        self._states = states
        self._clock = clock
        self._randomness = randomness
        self._metrics = metrics
        self._on_broken = on_broken
        self._requeue = requeue
        self._completion = completion
        self._on_committed = on_committed
        self._shard = shard
        self.watch = CommitWatch(clock)
        self.first_attempts: FirstAttempts | None = None
        """Set where this process sends."""

    async def commit(self, group: Sequence[Waiting | Unit]) -> None:
        """Commit a group and answer its callers."""
        self._metrics.group_size.observe(sum(len(entry.members) if isinstance(entry, Unit) else 1 for entry in group))
        ready = await self._completed(group)
        if not ready:
            return
        begun = self._begin(ready)
        changes = [change if started is None else started for (_, change), started in zip(ready, begun, strict=True)]
        group_id = fresh_ulid(self._clock, self._randomness)
        self.watch.begin(group_id)
        try:
            outcomes = await self._journal.append(self._shard, group_id, changes, self._clock.now())
        except BaseException as error:
            # A group that is rejected for its values says nothing about the next one.
            self.watch.end(group_id, None if isinstance(error, GroupRejected) else str(error) or repr(error))
            if not isinstance(error, Exception):
                raise
            self._abandon(begun, may_be_committed=not isinstance(error, Unavailable))
            await self._append_failed(ready, error)
            return
        self.watch.end(group_id, None)
        again: list[Waiting] = []
        attempts: list[tuple[Change, Outcome]] = []
        for (entry, _), change, started, outcome in zip(ready, changes, begun, outcomes, strict=True):
            if started is not None:
                attempts.append((started, outcome))
                is_early = isinstance(outcome, Conflict) and outcome.is_of_rows
                if is_early and isinstance(entry, Waiting):
                    # Its lane has a queue, or the venue has reported on it: it waits for its turn in the outbox.
                    entry.may_begin = False
                    again.append(entry)
                    continue
            self._settle(entry, change, outcome)
        if again:
            self._requeue(again)
        if attempts and self.first_attempts is not None:
            self.first_attempts.settle(attempts)

    def _begin(self, ready: Sequence[tuple[Waiting | Unit, Change]]) -> list[Change | None]:
        if self.first_attempts is None:
            return [None] * len(ready)
        return self.first_attempts.begin(
            [(change, isinstance(entry, Waiting) and entry.may_begin) for entry, change in ready]
        )

    def _abandon(self, begun: Sequence[Change | None], *, may_be_committed: bool) -> None:
        attempts = [change for change in begun if change is not None]
        if attempts and self.first_attempts is not None:
            self.first_attempts.abandon(attempts, may_be_committed=may_be_committed)

    async def _append_failed(self, ready: Sequence[tuple[Waiting | Unit, Change]], error: Exception) -> None:
        """Answer the callers of a group that was not written, or of which that is not known."""
        match error:
            case GroupRejected():
                await self._split([entry for entry, _ in ready], error)
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
            self._states.forget(change)
        if isinstance(entry, Unit):
            if isinstance(outcome, Committed):
                self._states.note_all(entry.states.values(), entry.positions.values())
                entry.answer_committed()
            else:
                entry.answer(outcome)
            return
        if isinstance(outcome, Committed):
            self._states.note_committed(change, outcome)
        entry.answer(outcome)
        if entry.followers:
            self._answer_followers(entry, outcome)

    async def _split(self, group: Sequence[Waiting | Unit], error: GroupRejected) -> None:
        """Commit a rejected group in halves, until the decision that the database rejects is alone."""
        if len(group) > 1:
            middle = len(group) // 2
            await self.commit(group[:middle])
            await self.commit(group[middle:])
            return
        [entry] = group
        if isinstance(entry, Unit) and len(entry.members) > 1:
            middle = len(entry.members) // 2
            for half in (entry.members[:middle], entry.members[middle:]):
                # Decided again: the second half builds on what is committed of the first.
                composition = Composition(self._states)
                for proposed, _ in half:
                    composition.add(proposed)
                await self.commit(composition.units)
            return
        log.error("change_rejected", error=str(error))
        self._answer_failed(entry, error)  # nothing was written: the states in memory are still those of the database

    def _answer_followers(self, leader: Waiting, outcome: Outcome) -> None:
        holder = outcome.key if isinstance(outcome, Conflict) else _stored_key(leader.change)
        followers, leader.followers = leader.followers or [], None
        if holder is None:
            self._requeue(followers)  # the leader's conflict was not about the key
            return
        for follower in followers:
            follower.answer(Conflict(holder))

    def _fail(self, group: Sequence[tuple[Waiting | Unit, Change]], error: SwitchyardError) -> None:
        for entry, change in group:
            self._states.forget(change)
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
