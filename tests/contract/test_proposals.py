"""Proposals over every database: decisions on one order compose, and a stale state in memory is never believed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import cast

import pytest

from switchyard.domain import decisions
from switchyard.domain.accounts.positions import ACCOUNT_TOTAL, account_total
from switchyard.domain.errors import GroupRejected, OutcomeUnknown
from switchyard.domain.ids import OrderId
from switchyard.domain.journal.changes import Change, Committed, Conflict, Outcome
from switchyard.domain.orders.outbox import OrderState
from switchyard.flow.commit.groups import Decided, Decision, Failed, Positions
from switchyard.flow.commit.sequencer import decide_all
from switchyard.ports.journal import Journal
from switchyard.telemetry.metrics import Metrics
from tests.support.build import ACCOUNT, WORKER, a_report, an_accept
from tests.support.databases import Database
from tests.support.memory.clock import START, ManualClock
from tests.support.polling import until
from tests.support.sequencing import running_sequencer
from tests.support.wrapped import Forwarding

TEN = Decimal(10)


class Watched(Forwarding):
    """A journal that notes what is appended, holds appends back, loses an answer and rejects the execution `poison`."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.groups: list[Sequence[Change]] = []
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.loses_answer = False

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        self.asked += 1
        await self.gate.wait()
        if any(execution.exec_id == "poison" for change in changes for execution in change.executions):
            raise GroupRejected("poison")
        outcomes: list[Outcome] = await self.port.append(shard, group_id, changes, now)
        self.groups.append(changes)
        if self.loses_answer:
            self.loses_answer = False
            raise OutcomeUnknown("the answer was lost")
        return outcomes


class Proposing:
    """A sequencer over a database, and orders whose attempt has begun."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.journal = Watched(cast(Journal, database.journal))
        self.sequencer = running_sequencer(cast(Journal, self.journal), ManualClock(), Metrics())
        self._groups = 0

    async def sending(self, count: int = 1) -> list[OrderState]:
        accepted = [an_accept() for _ in range(count)]
        for change in accepted:
            assert isinstance(await self.sequencer.commit(change), Committed)
        begun = await self.sequencer.propose([begin(change.orders[0].order_id) for change in accepted])
        assert all(isinstance(answer, Decided) for answer in begun)
        self.journal.groups.clear()
        states = await self.database.journal.load([change.orders[0].order_id for change in accepted])
        return [states[change.orders[0].order_id] for change in accepted]

    async def write_elsewhere(self, change: Change | None) -> None:
        """Commit as another process would: this one's memory does not learn of it."""
        assert change is not None
        self._groups += 1
        [outcome] = await self.database.journal.append(0, f"elsewhere-{self._groups}", [change], START)
        assert isinstance(outcome, Committed)

    async def stored(self, state: OrderState) -> OrderState:
        return (await self.database.journal.load([state.order.order_id]))[state.order.order_id]


@pytest.fixture
async def proposing(database: Database) -> AsyncIterator[Proposing]:
    yield Proposing(database)


def begin(order_id: OrderId) -> Decision:
    return Decision(order_id, lambda state, _: decisions.begin_attempt(state, state.row("new", 1), WORKER, START))


def settle(state: OrderState) -> Decision:
    """The venue has accepted the attempt; nothing is to be done if that is known already."""

    def decide(newest: OrderState, _: Positions) -> Change | None:
        row = newest.row("new", 1)
        return decisions.record_sent(newest, row, "venue-1", START) if row.status == "sending" else None

    return Decision(state.order.order_id, decide)


def fill(state: OrderState, exec_id: str, qty: Decimal = TEN) -> Decision:
    report = a_report(state, exec_id=exec_id, qty=qty)
    position, total = (ACCOUNT, state.order.symbol), (ACCOUNT, ACCOUNT_TOTAL)

    def decide(newest: OrderState, held: Positions) -> Change:
        results = held[total] or account_total(ACCOUNT, START)
        return decisions.apply_report(newest, held[position], report, START, total=results)

    return Decision(state.order.order_id, decide, (position, total))


async def test_an_answer_and_a_report_on_one_order_are_one_write(proposing: Proposing) -> None:
    [state] = await proposing.sending()
    answers = await proposing.sequencer.propose([settle(state), fill(state, "1"), fill(state, "2")])
    assert all(isinstance(answer, Decided) for answer in answers)
    [[change]] = proposing.journal.groups
    assert [order.version for order in change.orders] == [3, 4, 5]
    assert [event.type for event in change.events] == ["OrderSent", *["ExecutionReport", "OrderUpdated"] * 2]
    stored = await proposing.stored(state)
    assert [stored.order.version, stored.order.filled_qty, stored.row("new", 1).status] == [5, 20, "sent"]
    [position] = await proposing.database.queries.positions(ACCOUNT, limit=10)
    assert [position.qty, position.version] == [20, 2]


async def test_a_decision_that_another_one_makes_needless_is_answered_with_its_commit(proposing: Proposing) -> None:
    [state] = await proposing.sending()
    first, second = await proposing.sequencer.propose([settle(state), settle(state)])
    assert isinstance(first, Decided)
    assert second is None
    assert len(proposing.journal.groups) == 1


async def test_orders_without_a_common_row_conflict_alone(proposing: Proposing) -> None:
    first, second = await proposing.sending(2)
    await proposing.write_elsewhere(decisions.request_cancel(first, START))
    answers = await proposing.sequencer.propose([settle(first), settle(second)])
    assert [type(answer) for answer in answers] == [Conflict, Decided]
    answers = await proposing.sequencer.propose([settle(first)])
    assert [type(answer) for answer in answers] == [Decided]
    stored = await proposing.stored(first)
    assert len(stored.outbox) == 2, "the cancel of the other process is kept"


async def test_fills_of_one_position_are_rejected_together_and_decided_again(proposing: Proposing) -> None:
    first, second = await proposing.sending(2)
    [other] = await proposing.sending()
    await proposing.sequencer.propose([fill(first, "0")])  # the position is in memory now
    held = (await proposing.database.journal.load_positions([(ACCOUNT, "USDJPY")]))[ACCOUNT, "USDJPY"]
    elsewhere = decisions.apply_report(other, held, a_report(other, exec_id="elsewhere", qty=TEN), START)
    await proposing.write_elsewhere(elsewhere)
    proposals = [fill(first, "1"), fill(second, "2")]
    assert [type(answer) for answer in await proposing.sequencer.propose(proposals)] == [Conflict, Conflict]
    answers = await decide_all(proposing.sequencer.propose, proposals)
    assert all(isinstance(answer, Decided) for answer in answers)
    [position] = await proposing.database.queries.positions(ACCOUNT, limit=10)
    assert [position.qty, position.version] == [40, 4]


async def test_a_decision_to_do_nothing_is_believed_only_of_a_state_that_was_read(proposing: Proposing) -> None:
    """Otherwise an answer of the venue would be dropped because of a state that another process has changed since."""
    [state] = await proposing.sending()
    await proposing.sequencer.propose([settle(state)])
    assert isinstance((await proposing.sequencer.propose([settle(state)]))[0], Conflict)
    assert (await proposing.sequencer.propose([settle(state)])) == [None]


async def test_an_execution_that_is_reported_twice_counts_once(proposing: Proposing) -> None:
    first, second = await proposing.sending(2)
    proposals = [fill(first, "1"), fill(first, "1"), fill(second, "2")]
    assert [type(answer) for answer in await proposing.sequencer.propose(proposals)] == [Decided, Conflict, Decided]
    assert [type(answer) for answer in await proposing.sequencer.propose(proposals[:1])] == [Conflict]
    assert (await proposing.stored(first)).order.filled_qty == TEN


async def test_a_decision_waits_for_the_commit_that_it_builds_on(proposing: Proposing) -> None:
    [state] = await proposing.sending()
    proposing.journal.gate.clear()
    asked = proposing.journal.asked
    settling = asyncio.create_task(proposing.sequencer.propose([settle(state)]))
    await until(lambda: proposing.journal.asked > asked)
    filling = asyncio.create_task(proposing.sequencer.propose([fill(state, "1")]))
    accepting = [proposing.sequencer.commit(an_accept()) for _ in range(40)]
    await asyncio.sleep(0.01)
    proposing.journal.gate.set()
    assert [type(answer) for answer in (*await settling, *await filling)] == [Decided, Decided]
    assert all(isinstance(outcome, Committed) for outcome in await asyncio.gather(*accepting))
    order = (await proposing.stored(state)).order
    assert [order.version, order.filled_qty] == [4, 10]


async def test_a_decision_does_not_wait_for_the_changes_that_callers_have_decided_on_its_order(
    proposing: Proposing,
) -> None:
    """A worker's page has orders of all accounts: it must not wait while one account keeps changing one order."""
    state, other = await proposing.sending(2)
    cancel = decisions.request_cancel(state, START)
    assert cancel is not None
    proposing.journal.gate.clear()
    cancels = [asyncio.ensure_future(proposing.sequencer.commit(cancel)) for _ in range(20)]
    page = asyncio.ensure_future(decide_all(proposing.sequencer.propose, [settle(state), settle(other)]))
    await asyncio.sleep(0)

    proposing.journal.gate.set()
    answers = await page

    assert all(isinstance(answer, Decided) for answer in answers)
    assert len(proposing.journal.groups) <= 3, "two changes may have been before it, not twenty"
    assert sum(isinstance(outcome, Committed) for outcome in await asyncio.gather(*cancels)) == 1


async def test_a_conflict_of_a_change_on_an_older_state_leaves_the_newer_one_in_memory(proposing: Proposing) -> None:
    """Otherwise a decision finds no state to be made on, for as long as one caller's changes conflict."""
    [state] = await proposing.sending()
    cancel = decisions.request_cancel(state, START)
    assert cancel is not None
    assert isinstance(await proposing.sequencer.commit(cancel), Committed)

    assert isinstance(await proposing.sequencer.commit(cancel), Conflict)

    newest = proposing.sequencer.states.order(state.order.order_id)
    assert newest is not None and newest.order.version == state.order.version + 1


async def test_a_conflict_of_a_change_removes_the_state_on_which_it_was_decided(proposing: Proposing) -> None:
    [state] = await proposing.sending()
    await proposing.write_elsewhere(decisions.record_sent(state, state.row("new", 1), "venue-1", START))
    cancel = decisions.request_cancel(state, START)
    assert cancel is not None

    assert isinstance(await proposing.sequencer.commit(cancel), Conflict)

    assert proposing.sequencer.states.order(state.order.order_id) is None


async def test_a_lost_answer_leaves_no_state_in_memory(proposing: Proposing) -> None:
    """The page is proposed again, and what was committed after all is not written twice."""
    states = await proposing.sending(3)
    proposing.journal.loses_answer = True
    answers = await proposing.sequencer.propose([settle(state) for state in states])
    assert all(isinstance(answer, Failed) for answer in answers)
    again = await decide_all(proposing.sequencer.propose, [settle(state) for state in states])
    assert again == [None, None, None]
    assert [(await proposing.stored(state)).order.version for state in states] == [3, 3, 3]


async def test_one_decision_that_cannot_be_stored_fails_alone(proposing: Proposing) -> None:
    states = await proposing.sending(3)
    bad = fill(states[1], "poison")
    answers = await proposing.sequencer.propose([fill(states[0], "1"), bad, fill(states[2], "2"), settle(states[2])])
    assert [type(answer) for answer in answers] == [Decided, Failed, Decided, Decided]
    assert isinstance(answers[1], Failed)
    assert isinstance(answers[1].error, GroupRejected)
    [position] = await proposing.database.queries.positions(ACCOUNT, limit=10)
    assert [position.qty, position.version] == [20, 2]


async def test_an_amount_beyond_all_precision_fails_alone(proposing: Proposing) -> None:
    first, second = await proposing.sending(2)
    answers = await proposing.sequencer.propose([fill(first, "1", Decimal("1e-80")), fill(second, "2")])
    assert [type(answer) for answer in answers] == [Failed, Decided]


async def test_a_decision_that_raises_fails_alone(proposing: Proposing) -> None:
    first, second = await proposing.sending(2)

    def raises(_state: OrderState, _held: Positions) -> Change:
        raise LookupError("a defect")

    answers = await proposing.sequencer.propose([Decision(first.order.order_id, raises), settle(second)])
    assert [type(answer) for answer in answers] == [Failed, Decided]


async def test_an_ended_order_leaves_the_memory_and_a_late_report_finds_it(proposing: Proposing) -> None:
    [state] = await proposing.sending()
    await proposing.sequencer.propose([settle(state), fill(state, "1", state.order.qty)])
    assert proposing.sequencer.states.order(state.order.order_id) is None
    [late] = await proposing.sequencer.propose([fill(state, "2")])
    assert isinstance(late, Decided)
    assert (await proposing.stored(state)).order.filled_qty == state.order.qty + TEN
