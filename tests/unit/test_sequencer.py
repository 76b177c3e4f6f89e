"""The sequencer over the public in-memory journal."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from switchyard.domain import decisions
from switchyard.domain.errors import GroupRejected, JournalBroken, JournalUnavailable, OutcomeUnknown, QueueFull
from switchyard.domain.ids import AccountId, OrderId, VenueName, order_id, venue_client_order_id
from switchyard.domain.journal.changes import Change, Committed, Conflict, Outcome
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.order import OrderRequest
from switchyard.domain.orders.outbox import OrderState
from switchyard.flow.commit.groups import Decided, Decision, Positions
from switchyard.flow.commit.sequencer import COMMIT_SECONDS_MAX, FAILURE_SECONDS, OVERLAP_MIN, Sequencer, decide_all
from switchyard.telemetry.metrics import Metrics
from tests.support.build import WORKER, a_report, an_accept, state_after
from tests.support.memory.clock import ManualClock, SeededRandomness
from tests.support.memory.journal import MemoryJournal
from tests.support.polling import until

NOW = datetime(2026, 1, 5, tzinfo=UTC)
ACCOUNT = AccountId("acct")


def accepting(number: int, key: str | None = None) -> Change:
    new_id = order_id(1_700_000_000_000, number)
    request = OrderRequest(symbol="BTC", side="BUY", type="MARKET", qty=Decimal(1), time_in_force="IOC")
    keys = None
    if key is not None:
        keys = KeyEntry(
            account_id=ACCOUNT,
            operation="orders",
            idempotency_key=key,
            generation=0,
            order_id=new_id,
            request_digest="sha256:0",
            created_at=NOW,
            expires_at=NOW + timedelta(days=1),
        )
    return decisions.accept(
        request,
        account=ACCOUNT,
        order_id=new_id,
        venue=VenueName("sim"),
        venue_client_order_id=venue_client_order_id("test", ACCOUNT, "orders", key, 0, new_id),
        key=keys,
        quote=None,
        now=NOW,
    )


class GatedJournal(MemoryJournal):
    """Delays each append until the gate opens, and records the sizes of the groups."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.began = asyncio.Event()
        self.groups: list[int] = []
        self.poison: Change | None = None
        self.failure: Exception | None = None

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        self.began.set()
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        if self.poison in changes:
            raise GroupRejected("poison")
        self.groups.append(len(changes))
        return await super().append(shard, group_id, changes, now)


class Bench:
    def __init__(self, capacity: int = 100) -> None:
        self.journal = GatedJournal()
        self.broken: list[str] = []
        self.clock = ManualClock()
        self.sequencer = Sequencer(
            self.journal,
            clock=self.clock,
            randomness=SeededRandomness(),
            metrics=Metrics(),
            wakes=[],
            capacity=capacity,
            on_broken=self.broken.append,
        )

    async def __aenter__(self) -> "Bench":
        self._task = asyncio.create_task(self.sequencer.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def beginning(state: OrderState, _: Positions) -> Change:
    return decisions.begin_attempt(state, state.row("new", 1), WORKER, NOW)


async def accepted(bench: Bench, count: int = 1) -> list[OrderId]:
    """Commit so many new orders."""
    changes = [accepting(number) for number in range(count)]
    await asyncio.gather(*map(bench.sequencer.commit, changes))
    return [change.orders[0].order_id for change in changes]


async def begin_elsewhere(bench: Bench, order: OrderId) -> OrderState:
    """Begin the first attempt of an order in another process, while this one has the order in memory."""
    await bench.sequencer.states.load([order])
    state = (await bench.journal.load([order]))[order]
    assert isinstance((await bench.journal.append(0, "other", [beginning(state, {})], NOW))[0], Committed)
    return (await bench.journal.load([order]))[order]


@pytest.mark.parametrize("by", ["a request", "a stage"])
async def test_nothing_is_answered_before_its_commit(by: str) -> None:
    async with Bench() as bench:
        [order] = await accepted(bench)
        bench.journal.gate.clear()
        bench.journal.began.clear()
        answer: asyncio.Future[object] = asyncio.ensure_future(
            bench.sequencer.commit(accepting(1))
            if by == "a request"
            else bench.sequencer.propose([Decision(order, beginning)])
        )
        await bench.journal.began.wait()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not answer.done()
        bench.journal.gate.set()
        await answer
        assert (await bench.journal.head(0)).seq == 2


async def test_a_decision_waits_for_the_commit_that_it_builds_on() -> None:
    """As many others do not wait, so that the next group starts while the first one is being committed."""
    versions: list[int] = []

    def cancelling(state: OrderState, _: Positions) -> Change | None:
        versions.append(state.order.version)
        return decisions.request_cancel(state, NOW)

    async with Bench() as bench:
        first, *others = await accepted(bench, 1 + OVERLAP_MIN)
        bench.journal.gate.clear()
        bench.journal.began.clear()
        beginning_first = asyncio.create_task(bench.sequencer.propose([Decision(first, beginning)]))
        await bench.journal.began.wait()
        waiting = asyncio.create_task(bench.sequencer.propose([Decision(one, cancelling) for one in (first, *others)]))
        await until(lambda: len(versions) >= len(others))
        bench.journal.gate.set()
        answers = [*await beginning_first, *await waiting]
        assert all(isinstance(answer, Decided) for answer in answers)
        assert versions == [*[1] * len(others), 2]


async def test_a_decision_to_do_nothing_is_made_on_the_newest_state() -> None:
    """No commit would find that the state in memory is older than the one in the database."""

    def cancelling(state: OrderState, _: Positions) -> Change | None:
        return None if state.order.status == "ACCEPTED" else decisions.request_cancel(state, NOW)

    async with Bench() as bench:
        [order] = await accepted(bench)
        await begin_elsewhere(bench, order)
        [answer] = await decide_all(bench.sequencer.propose, [Decision(order, cancelling)])
        assert isinstance(answer, Decided)


async def test_a_change_of_rows_that_its_caller_has_read_is_not_mixed_with_an_older_state() -> None:
    async with Bench() as bench:
        [order] = await accepted(bench)
        cancel = decisions.request_cancel(await begin_elsewhere(bench, order), NOW)
        assert cancel is not None
        assert isinstance(await bench.sequencer.commit(cancel), Committed)
        await bench.sequencer.states.load([order])
        assert bench.sequencer.states.order(order) == (await bench.journal.load([order]))[order]


@pytest.mark.parametrize(("crowd", "groups"), [(20, [20]), (100, [50, 50]), (2000, [512, 512, 512, 464])])
async def test_changes_that_arrive_during_a_commit_are_committed_together(crowd: int, groups: list[int]) -> None:
    async with Bench() as bench:
        bench.journal.gate.clear()
        first = bench.sequencer.commit(accepting(0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        others = [bench.sequencer.commit(accepting(n)) for n in range(1, crowd + 1)]
        for _ in range(3):  # until the next group waits behind the first one
            await asyncio.sleep(0)
        bench.journal.gate.set()
        outcomes = await asyncio.gather(first, *others)
        assert bench.journal.groups == [1, *groups]
        assert [outcome.first_seq for outcome in outcomes if isinstance(outcome, Committed)] == list(
            range(1, crowd + 2)
        )


async def test_the_same_key_a_hundred_times_is_one_order_also_within_one_group() -> None:
    async with Bench(capacity=1000) as bench:
        outcomes = await asyncio.gather(*(bench.sequencer.commit(accepting(n, "key")) for n in range(100)))
        committed = [outcome for outcome in outcomes if isinstance(outcome, Committed)]
        rejected = [outcome for outcome in outcomes if isinstance(outcome, Conflict)]
        assert (len(committed), len(rejected)) == (1, 99)
        assert len({rejection.key.order_id for rejection in rejected if rejection.key}) == 1
        assert (await bench.journal.head(0)).seq == 1


async def test_a_full_queue_rejects_requests_but_not_stages() -> None:
    async with Bench(capacity=3) as bench:
        bench.journal.gate.clear()
        running = [bench.sequencer.offer(accepting(0))]
        for _ in range(3):
            await asyncio.sleep(0)
        running += [bench.sequencer.offer(accepting(n)) for n in range(1, 4)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await bench.sequencer.offer(accepting(9))
        running.append(bench.sequencer.commit(accepting(10)))
        await asyncio.sleep(0)
        bench.journal.gate.set()
        assert all(isinstance(outcome, Committed) for outcome in await asyncio.gather(*running))


async def test_one_bad_change_fails_alone() -> None:
    async with Bench() as bench:
        changes = [accepting(n) for n in range(20)]
        bench.journal.poison = changes[7]
        outcomes = await asyncio.gather(*(bench.sequencer.commit(change) for change in changes), return_exceptions=True)
        assert isinstance(outcomes[7], GroupRejected)
        assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 19
        assert not bench.broken


async def test_a_cancelled_caller_does_not_affect_the_others() -> None:
    async with Bench() as bench:
        bench.journal.gate.clear()
        leaving = bench.sequencer.commit(accepting(0))
        staying = bench.sequencer.commit(accepting(1))
        await asyncio.sleep(0)
        leaving.cancel()
        bench.journal.gate.set()
        assert isinstance(await staying, Committed)
        assert (await bench.journal.head(0)).seq == 2


async def test_changes_of_one_order_go_one_after_the_other() -> None:
    async with Bench() as bench:
        change = accepting(0)
        await bench.sequencer.commit(change)
        state = (await bench.journal.load([change.orders[0].order_id]))[change.orders[0].order_id]
        twice = [decisions.request_cancel(state, NOW) for _ in range(2)]
        outcomes = await asyncio.gather(*(bench.sequencer.commit(one) for one in twice if one is not None))
        assert [type(outcome) for outcome in outcomes] == [Committed, Conflict]
        assert bench.journal.groups == [1, 1, 1]


async def test_fills_of_one_position_go_one_after_the_other() -> None:
    async with Bench() as bench:
        accepted = [an_accept(), an_accept(), an_accept(account="another")]
        await asyncio.gather(*(bench.sequencer.commit(change) for change in accepted))
        bench.journal.groups.clear()
        states = [state_after(change) for change in accepted]
        fills = [
            decisions.apply_report(state, None, a_report(state, exec_id=str(number)), NOW)
            for number, state in enumerate(states)
        ]
        outcomes = await asyncio.gather(*(bench.sequencer.commit(fill) for fill in fills))
        assert [type(outcome) for outcome in outcomes] == [Committed, Conflict, Committed]
        assert bench.journal.groups == [2, 1]


@pytest.mark.parametrize("failure", [OutcomeUnknown("lost"), JournalBroken("disk"), RuntimeError("defect")])
async def test_a_lost_outcome_is_reported_as_unknown_never_as_rejected(failure: Exception) -> None:
    async with Bench() as bench:
        bench.journal.failure = failure
        outcomes = await asyncio.gather(
            *(bench.sequencer.commit(accepting(n, "same")) for n in range(3)), return_exceptions=True
        )
        assert all(isinstance(outcome, OutcomeUnknown) for outcome in outcomes)
        assert bool(bench.broken) == (type(failure) is not OutcomeUnknown)


async def test_a_commit_that_hangs_or_fails_is_a_problem_until_one_succeeds() -> None:
    async with Bench() as bench:
        assert bench.sequencer.commit_problem() is None
        bench.journal.gate.clear()
        waiting = bench.sequencer.commit(accepting(1))
        await bench.journal.began.wait()
        assert bench.sequencer.commit_problem() is None
        bench.clock.advance(timedelta(seconds=COMMIT_SECONDS_MAX))
        assert "no answer for 2 s" in (bench.sequencer.commit_problem() or "")
        bench.journal.gate.set()
        await waiting
        assert bench.sequencer.commit_problem() is None

        bench.journal.failure = JournalUnavailable("read-only")
        with pytest.raises(JournalUnavailable):
            await bench.sequencer.commit(accepting(2))
        assert "read-only" in (bench.sequencer.commit_problem() or "")
        bench.journal.failure = None
        await bench.sequencer.commit(accepting(3))
        assert bench.sequencer.commit_problem() is None

        # A change that the database cannot store says nothing about the others.
        bench.journal.poison = accepting(4)
        with pytest.raises(GroupRejected):
            await bench.sequencer.commit(bench.journal.poison)
        assert bench.sequencer.commit_problem() is None


async def test_a_failed_commit_counts_for_a_while_so_that_requests_come_again() -> None:
    async with Bench() as bench:
        bench.journal.failure = JournalUnavailable("read-only")
        with pytest.raises(JournalUnavailable):
            await bench.sequencer.commit(accepting(1))
        bench.clock.advance(timedelta(seconds=FAILURE_SECONDS))
        assert bench.sequencer.commit_problem() is None
