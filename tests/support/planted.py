"""Runs `switchyard` with a defect in one of its ports, to show that the harness of the crash tests detects it.

Usage: python -m tests.support.planted DEFECT ROLE
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from switchyard.domain import decisions
from switchyard.domain.errors import OutcomeUnknown
from switchyard.domain.ids import OrderId, WorkerId
from switchyard.domain.journal.changes import Change, Committed, Outcome
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxKind, OutboxRow
from switchyard.ports.venue import (
    Ambiguous,
    Capabilities,
    OnDeparture,
    SendOutcome,
    Unsent,
    VenueRejected,
    ignore_departure,
)
from tests.support.one_by_one import OneByOne
from tests.support.wrapped import Forwarding, Wrapped, command, run_wrapped

# Pages of reports; few, because a busy machine reads all reports of a short run in a few pages.
LOST_EVERY = 2
# Longer than it takes to post the next order.
LATE_SECONDS = 0.5


class ClaimsPermanentDedupe(Forwarding):
    """A venue that declares more than it does, so that an order in doubt is sent again."""

    @property
    def capabilities(self) -> Capabilities:
        declared: Capabilities = self.port.capabilities
        return msgspec.structs.replace(declared, dedupe="permanent")


class TakesDoubtForRejection(OneByOne, Forwarding):
    """A venue whose lost responses count as rejections."""

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        outcome: SendOutcome = await self.port.submit(order, on_departure)
        return VenueRejected("BROKER_REJECTED") if isinstance(outcome, Ambiguous) else outcome


class TakesDoubtForUnsent(OneByOne, Forwarding):
    """A venue whose lost responses count as requests that never left, so that orders in doubt go to another venue."""

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        outcome: SendOutcome = await self.port.submit(order, on_departure)
        return Unsent("BROKER_DOWN") if isinstance(outcome, Ambiguous) else outcome


class SentBeforeSending(Forwarding):
    """A journal that marks an order as sent as soon as the attempt begins."""

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        outcomes: list[Outcome] = await self.port.append(shard, group_id, changes, now)
        begun = [
            change.orders[0].order_id
            for change, outcome in zip(changes, outcomes, strict=True)
            if isinstance(outcome, Committed) and attempts(change)
        ]
        if begun:
            states: Mapping[OrderId, OrderState] = await self.port.load(begun)
            sent = [decisions.record_sent(one, one.row("new", 1), "venue", now) for one in states.values()]
            await self.port.append(shard, f"{group_id}-sent", sent, now)
        return outcomes


class StoresNoKeys(Forwarding):
    """A journal that neither checks nor stores idempotency keys."""

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        without_keys = [msgspec.structs.replace(change, keys=()) for change in changes]
        outcomes: list[Outcome] = await self.port.append(shard, group_id, without_keys, now)
        return outcomes


class WithoutFence(Forwarding):
    """A journal that shows this process its own attempts as still running, also after another worker ended them."""

    def __init__(self, port: object) -> None:
        super().__init__(port)
        self._attempts: dict[OrderId, OutboxRow] = {}

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        outcomes: list[Outcome] = await self.port.append(shard, group_id, changes, now)
        for change, outcome in zip(changes, outcomes, strict=True):
            if isinstance(outcome, Committed):
                self._attempts.update({row.order_id: row for row in attempts(change)})
        return outcomes

    async def load(self, order_ids: Sequence[OrderId]) -> Mapping[OrderId, OrderState]:
        states: Mapping[OrderId, OrderState] = await self.port.load(order_ids)
        return {order_id: self._as_begun(state) for order_id, state in states.items()}

    def _as_begun(self, state: OrderState) -> OrderState:
        begun = self._attempts.get(state.order.order_id)
        if begun is None:
            return state
        rows = (
            msgspec.structs.replace(row, status="sending", attempt=begun.attempt, worker=begun.worker)
            if row.kind == "new"
            else row
            for row in state.outbox
        )
        return msgspec.structs.replace(state, outbox=tuple(rows))


class BelievesStaleStates(Forwarding):
    """A journal that checks no versions of orders, so that a decision on a state that is not the newest is written."""

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        ids = {order.order_id for change in changes for order in change.orders if order.version > 1}
        stored: Mapping[OrderId, OrderState] = await self.port.load(list(ids))
        fitted = [_fitted(change, stored) for change in changes]
        outcomes: list[Outcome] = await self.port.append(shard, group_id, fitted, now)
        return outcomes


class RecordsPagesTwice(Forwarding):
    """A journal that does not record executions and loses an answer now and then: the page is then recorded again."""

    def __init__(self, port: object) -> None:
        super().__init__(port)
        self._pages = 0

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        unrecorded = [msgspec.structs.replace(change, executions=()) for change in changes]
        outcomes: list[Outcome] = await self.port.append(shard, group_id, unrecorded, now)
        self._pages += any(change.executions for change in changes)
        if self._pages == LOST_EVERY:
            self._pages = 0
            raise OutcomeUnknown("the answer was lost")
        return outcomes


class AttemptsAreNotJudged(Forwarding):
    """A journal that lets a first attempt begin with its order, whatever waits in its lane or was reported before."""

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        accepted = [_accepted_part(change) for change in changes]
        outcomes: list[Outcome] = await self.port.append(shard, group_id, accepted, now)
        begun = [
            _begun_part(change)
            for change, outcome in zip(changes, outcomes, strict=True)
            if change.unqueued_rows() and isinstance(outcome, Committed)
        ]
        if begun:
            await self.port.append(shard, f"{group_id}-begun", begun, now)
        return outcomes


class ReadsTheQueueLate(Forwarding):
    """Queries whose reads of the queue take so long that a queued order waits when the next one is accepted."""

    async def due(self, *arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(LATE_SECONDS)
        return await self.port.due(*arguments, **named)


class OthersAreDead(Forwarding):
    """A liveness that reports every other worker as dead, as an expired lease would."""

    _own: WorkerId | None = None

    async def hold(self, worker: WorkerId) -> None:
        self._own = worker
        await self.port.hold(worker)

    async def dead(self, workers: Sequence[WorkerId]) -> frozenset[WorkerId]:
        return frozenset(worker for worker in workers if worker != self._own)


def _fitted(change: Change, stored: Mapping[OrderId, OrderState]) -> Change:
    """The change with the versions that follow those in the database."""

    def behind(order_id: OrderId, first: int, kind: OutboxKind | None = None, number: int = 0) -> int:
        state = stored.get(order_id)
        if state is None:
            return 0
        version = state.order.version if kind is None else state.version_of(kind, number) or 0
        return version + 1 - first

    orders = {order.order_id: behind(order.order_id, order.version) for order in reversed(change.orders)}
    rows = {row.key: behind(row.order_id, row.version, row.kind, row.number) for row in reversed(change.outbox)}
    return msgspec.structs.replace(
        change,
        orders=tuple(
            msgspec.structs.replace(order, version=order.version + orders[order.order_id]) for order in change.orders
        ),
        outbox=tuple(msgspec.structs.replace(row, version=row.version + rows[row.key]) for row in change.outbox),
    )


def _accepted_part(change: Change) -> Change:
    """The change without the attempt that begins with its order."""
    if not change.unqueued_rows():
        return change
    return msgspec.structs.replace(change, events=change.events[:1], orders=change.orders[:1], outbox=change.outbox[:1])


def _begun_part(change: Change) -> Change:
    """Only the attempt."""
    return Change(events=change.events[1:], orders=change.orders[1:], outbox=change.outbox[1:])


def attempts(change: Change) -> list[OutboxRow]:
    """The orders whose attempt to be sent begins with this change."""
    return [row for row in change.outbox if row.kind == "new" and row.status == "sending"]


DEFECTS = {
    "blind_requeue": Wrapped(venue=ClaimsPermanentDedupe),
    "sent_before_sending": Wrapped(journal=SentBeforeSending),
    "doubt_is_rejection": Wrapped(venue=TakesDoubtForRejection),
    "doubt_is_unsent": Wrapped(venue=TakesDoubtForUnsent),
    "keys_are_not_stored": Wrapped(journal=StoresNoKeys),
    "fence_removed": Wrapped(journal=WithoutFence),
    "the_living_are_dead": Wrapped(liveness=OthersAreDead),
    "stale_states_are_believed": Wrapped(journal=BelievesStaleStates),
    "attempts_are_not_judged": Wrapped(journal=AttemptsAreNotJudged, queries=ReadsTheQueueLate),
    "pages_are_recorded_twice": Wrapped(journal=RecordsPagesTwice),
}


def planted_command(defect: str) -> list[str]:
    """Runs in place of `switchyard` and has the defect."""
    return command("planted", defect)


if __name__ == "__main__":
    run_wrapped(sys.argv[2], DEFECTS[sys.argv[1]])
