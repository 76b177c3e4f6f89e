"""Orders that go back to the queue keep their places: those behind them are not sent first, by any worker."""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from switchyard.domain.errors import OutcomeUnknown
from switchyard.domain.ids import OrderId, WorkerId
from switchyard.domain.journal.changes import Change, Committed, Outcome
from switchyard.domain.orders.order import Order
from switchyard.ports.journal import Journal
from switchyard.ports.venue import Accepted, SendOutcome
from tests.support.build import an_accept
from tests.support.polling import until
from tests.support.sending import BatchVenue, Sending
from tests.support.wrapped import Forwarding

OTHER = WorkerId("other")


class Journaled(Forwarding):
    """A journal whose next answer can be lost, and whose appends can be held."""

    is_lost = False

    def __init__(self, port: Journal) -> None:
        super().__init__(port)
        self.appends = 0
        self.gates: dict[int, asyncio.Event] = {}
        """By the number of the append: what it waits for."""

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        self.appends += 1
        if self.appends in self.gates:
            await self.gates[self.appends].wait()
        outcomes: list[Outcome] = await self.port.append(shard, group_id, changes, now)
        if self.is_lost:
            self.is_lost = False
            raise OutcomeUnknown("the answer was lost")
        return outcomes


class HeldQueries(Forwarding):
    """Queries whose pages of the queue are held after they were read."""

    def __init__(self, port: object) -> None:
        super().__init__(port)
        self.is_read = asyncio.Event()
        self.may_return = asyncio.Event()

    async def due(self, *arguments: Any, **options: Any) -> Any:
        page = await self.port.due(*arguments, **options)
        self.is_read.set()
        await self.may_return.wait()
        return page


def accepts(orders: Sequence[Order]) -> list[SendOutcome]:
    return [Accepted(f"venue-{order.order_id}") for order in orders]


class Worker:
    """A worker that owns every lane, and whose dispatcher a test runs step by step."""

    def __init__(self) -> None:
        journals: list[Journaled] = []

        def journaled(journal: Journal) -> Journaled:
            journals.append(Journaled(journal))
            return journals[0]

        self.venue = BatchVenue("permanent", *[accepts] * 8)
        self.sending = Sending(self.venue, journaled)
        self.dispatcher = self.sending.dispatcher
        [self.journal] = journals

    async def accept(self) -> OrderId:
        change = an_accept(now=self.sending.clock.now())
        with contextlib.suppress(OutcomeUnknown):
            assert isinstance(await self.sending.sequencer.commit(change), Committed)
        return change.orders[0].order_id

    async def accept_elsewhere(self) -> OrderId:
        """Accept an order of the same line in another process."""
        change = an_accept(now=self.sending.clock.now())
        await self.journal.port.append(0, "other", [change], self.sending.clock.now())
        return change.orders[0].order_id

    def hold_queries(self) -> HeldQueries:
        queries = HeldQueries(self.sending.database.queries)
        self.dispatcher._queries = queries
        return queries

    async def share_lanes(self, wanted: OrderId | None = None) -> None:
        """Let another worker have its share of the lanes that are idle, the one of this order among them."""
        await self.sending.database.liveness.hold(OTHER)
        await self.sending.database.lanes.hold(OTHER, [])
        await self.sending.lanes.renew()
        if wanted is not None:
            self.sending.lanes._leaving |= {self.sending.state(wanted).outbox[0].lane}
        await self.sending.lanes.renew()
        await self.sending.database.lanes.hold(OTHER, [])

    def owner(self, order_id: OrderId) -> WorkerId:
        return self.sending.database.lanes.owners[self.sending.state(order_id).outbox[0].lane]


@pytest.fixture
async def worker() -> Worker:
    worker = Worker()
    await worker.sending.database.liveness.hold(WorkerId("own"))
    await worker.sending.lanes.renew()
    worker.dispatcher.inline_first_send.start()
    return worker


async def test_an_order_whose_commit_was_not_answered_is_not_passed(worker: Worker) -> None:
    worker.journal.is_lost = True
    first = await worker.accept()
    second = await worker.accept()
    assert worker.sending.row_statuses() == ["sending", "queued"], "the first is unsent, and waits for recovery"
    assert await worker.dispatcher.recover_once() == 1
    assert await worker.dispatcher.run_once() == 2
    await until(lambda: worker.sending.row_statuses() == ["sent", "sent"])
    assert worker.venue.sent == [first, second]
    third = await worker.accept()
    await until(lambda: worker.venue.sent == [first, second, third])


async def test_a_claim_beside_an_order_whose_commit_was_not_answered_does_not_pass_it(worker: Worker) -> None:
    """The later order comes from another process, and is claimed before recovery has looked for the first one."""
    worker.journal.is_lost = True
    first = await worker.accept()
    second = await worker.accept_elsewhere()
    assert await worker.dispatcher.run_once() == 0
    assert await worker.dispatcher.recover_once() == 1
    assert await worker.dispatcher.run_once() == 2
    await until(lambda: worker.venue.sent == [first, second])


async def test_the_lane_of_an_order_whose_commit_was_not_answered_is_not_given_away(worker: Worker) -> None:
    worker.journal.is_lost = True
    first = await worker.accept()
    await worker.share_lanes(first)
    assert worker.owner(first) == "own", "another worker would send those behind it"
    assert await worker.dispatcher.recover_once() == 1
    await worker.share_lanes(first)
    assert worker.owner(first) == OTHER


async def test_an_order_that_was_held_back_while_the_queue_was_read_is_not_passed(worker: Worker) -> None:
    worker.dispatcher.inline_first_send.stop()
    first = await worker.accept()
    claim, outcome = worker.journal.gates[2], worker.journal.gates[3] = asyncio.Event(), asyncio.Event()
    claiming = asyncio.create_task(worker.dispatcher.run_once())
    await until(lambda: worker.journal.appends == 2)
    worker.sending.clock.advance(timedelta(seconds=3))  # longer than an attempt may take until it is sent
    await worker.sending.lanes.renew()
    second = await worker.accept_elsewhere()
    claim.set()
    assert await claiming == 1
    queries = worker.hold_queries()
    reading = asyncio.create_task(worker.dispatcher.run_once())
    await queries.is_read.wait()
    assert worker.sending.row_statuses() == ["sending", "queued"], "the page has only the second one"
    outcome.set()
    await until(lambda: worker.sending.row_statuses() == ["failed", "queued"] and worker.sending.in_flight == 0)
    queries.may_return.set()
    assert await reading == 0
    for _ in range(3):
        await until(lambda: worker.sending.in_flight == 0)
        await worker.dispatcher.run_once()
    await until(lambda: worker.sending.row_statuses() == ["sent", "sent"])
    assert worker.venue.sent == [first, second]


async def test_rows_of_a_lane_that_was_given_away_while_the_queue_was_read_are_not_claimed(worker: Worker) -> None:
    worker.dispatcher.inline_first_send.stop()
    symbols = [f"S{number}" for number in range(40)]
    for symbol in symbols:
        await worker.sending.sequencer.commit(an_accept(now=worker.sending.clock.now(), symbol=symbol))
    queries = worker.hold_queries()
    reading = asyncio.create_task(worker.dispatcher.run_once())
    await queries.is_read.wait()
    await worker.share_lanes()
    queries.may_return.set()
    await reading
    rows = worker.sending.database.journal.outbox.values()
    claimed = {worker.owner(row.order_id) for row in rows if row.status != "queued"}
    assert claimed == {"own"}, "the other worker may be sending later orders of its lanes"
